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

from made_up_runs import make_run
from measuring import interleave, quick, ratio, ratio_target, spread, write_record

import tapas
from tapas import checksums
from tapas.training.run_check import check_run

ITEMS, EVENTS, TURNS = (300_000, 1_000_000, 3) if quick() else (7_400_000, 40_000_000, 7)
DIM = 128


def without_checks(run: Path) -> None:
    with (
        mock.patch.object(checksums, "find_damage", return_value={}),
        mock.patch.object(checksums, "_wrong_size", return_value=None),
    ):
        tapas.load(run)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        run = make_run(Path(name), ITEMS, EVENTS, dim=DIM)
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
