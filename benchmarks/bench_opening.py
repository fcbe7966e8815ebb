"""What do checksums cost when a run is opened?  `tapas.load` of a made-up run of several GB.

A run of 8 GB with 7.4 million items (D=128, rows of 3.8 GB and as much again for the encoder's
input) and a log of 40 million events, opened in turns:

without checks   sizes and checksums are not looked at
tapas.load       what every command does: small files in full, blocks of those above 64 MB
everything       what `tapas verify` reads: all bytes, on all cores

The files stay in the page cache: then reading costs least, and checking most, in proportion. So
the run is no larger than fits twice into 24 GB; checks read as much of a larger one. Needs about
18 GB of memory and 10 GB of disk. Target: opening with checks takes at
most 1.05 times as long as without. `--quick`: 300,000 items, where loading is short and the
overhead of small files shows.
"""

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import polars as pl
from measuring import interleave, quick, ratio, ratio_target, spread, write_record

import tapas
from tapas import checksums
from tapas.checkpoints.model import contents_of
from tapas.data.event_log import EventLog, write_log
from tapas.data.splits import split_log
from tapas.data.vocabulary import Vocabulary
from tapas.tables.ranks import ONE_PROCESS
from tapas.training.build import TrainingData, build_model
from tapas.training.config import build_config
from tapas.training.run_check import check_run
from tapas.training.run_folder import create_run

ITEMS, EVENTS, TURNS = (300_000, 1_000_000, 3) if quick() else (7_400_000, 40_000_000, 7)
DIM, LENGTH = 128, 20


def make_log(folder: Path) -> EventLog:
    """`EVENTS` events of uniform items, by users with `LENGTH` events each."""
    items = np.random.default_rng(0).integers(0, ITEMS, EVENTS, dtype=np.int32)
    offsets = np.arange(0, EVENTS + 1, LENGTH)
    arrays = {"items": items, "times": np.arange(EVENTS), "offsets": offsets}
    keys = {"item": np.bincount(items, minlength=ITEMS), "user": np.diff(offsets)}
    vocabularies = {
        kind: Vocabulary(pl.Series(np.arange(len(counts))), counts, kind=kind)
        for kind, counts in keys.items()
    }
    folder.mkdir()
    write_log(folder, arrays, vocabularies, {"items": ITEMS, "time_kind": "number"})
    return EventLog.open(folder)


def make_run(folder: Path) -> Path:
    """A run with one checkpoint of random weights; speed does not depend on them."""
    tables = {"log": {"files": ["none"]}, "model": {"dim": DIM}, "split": {"kind": "last"}}
    config, log = build_config(tables), make_log(folder / "log")
    split = split_log(log, config.split)
    data = TrainingData(None, log, split.train_end)
    model = build_model(config, split.train_counts, ONE_PROCESS, data=data)
    run = create_run(folder / "run", config, log)
    run.checkpoints.save(1, contents_of(model), {}, best=True)
    return run.path


def without_checks(run: Path) -> None:
    with (
        mock.patch.object(checksums, "find_damage", return_value={}),
        mock.patch.object(checksums, "_wrong_size", return_value=None),
    ):
        tapas.load(run)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        run = make_run(Path(name))
        num_bytes = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
        seconds = interleave(
            {
                "without checks": lambda: without_checks(run),
                "tapas.load": lambda: tapas.load(run),
                "everything": lambda: check_run(run),
            },
            repeats=TURNS,
            warmup=1,
        )
    bare = seconds["without checks"]
    for each, values in seconds.items():
        print(f"{each:<18}{spread(values):<38}{ratio(values, bare)}")
    print(f"run of {num_bytes / 1e9:.2f} GB")
    write_record(
        "opening",
        {"C": ITEMS, "D": DIM, "events": EVENTS, "run_bytes": num_bytes},
        {"seconds": seconds},
        targets=[
            ratio_target(
                f"opening a run of {num_bytes / 1e9:.0f} GB with checks / without",
                seconds["tapas.load"],
                bare,
                "at most",
                1.05,
            )
        ],
    )


if __name__ == "__main__":
    main()
