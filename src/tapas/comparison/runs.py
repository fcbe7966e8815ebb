"""One training run of a comparison: what it is, and doing it."""

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from functools import cache as remember
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.comparison.config import CompareConfig
from tapas.comparison.contenders import NEXT_ITEMS
from tapas.comparison.peak_memory import forget_peak, peak_bytes
from tapas.comparison.synthetic_log import TRUTH, SyntheticLogConfig, kept_log, rank_by_truth
from tapas.data.event_log import EventLog
from tapas.data.prepare import prepare_log
from tapas.data.source import LogSource
from tapas.data.splits import Points, Split, split_log
from tapas.errors import DataError, UsageError
from tapas.evaluation.baselines import COUNTING, rank_by_counting
from tapas.evaluation.points import PointEvaluator, block_sums, spread_points
from tapas.evaluation.scores import measure
from tapas.training.build import Parts, build
from tapas.training.model import SequenceModel
from tapas.training.step import step

MOMENTS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)  # of a run, when it is judged
STOP_POINTS = 750  # of validation: by them a run chooses its best moment
REFERENCES = (*COUNTING, TRUTH)
VALIDATION, TEST = "validation", "test"


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareRun:
    """Everything that decides the outcome of a run beside the settings of the comparison."""

    contender: str  # or one of `REFERENCES`, which need no training
    rows_lr: float = 0.0
    knob: float | None = None
    num_samples: int = 0  # n, of contenders that sample
    steps: int = 0
    step_seconds: float = 0.0  # the contender's pace, alone on the machine
    seed: int = 0
    points: str = TEST  # or "validation", for choosing settings

    def key(self) -> str:
        """A short name for all of the above."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Scene:
    """The log of a comparison, opened, with what is held out."""

    source: LogSource
    log: EventLog
    split: Split


def find_log(config: CompareConfig, cache: Path) -> LogSource:
    """Where the log is; a made-up one is written the first time."""
    if config.log is not None:
        config.log.paths()
        return config.log
    path = kept_log(config.made or SyntheticLogConfig(), cache)
    return LogSource(files=(str(path),), user="user", item="item", time="time")


@remember
def open_scene(config: CompareConfig, cache: Path) -> Scene:
    """Once in each process."""
    source = find_log(config, cache)
    log = prepare_log(source, cache)
    return Scene(source, log, split_log(log, config.split))


def build_run(run: CompareRun, config: CompareConfig, scene: Scene) -> Parts:
    """The model of `run`, its batches and its optimizer."""
    train = config.train_config(
        scene.source,
        run.num_samples,
        contender=run.contender,
        rows_lr=run.rows_lr,
        knob=run.knob,
        steps=run.steps,
        seed=run.seed,
        num_classes=scene.log.num_items,
    )
    return build(train, scene.log, scene.split)


def execute(run: CompareRun, config: CompareConfig, cache: Path) -> dict[str, Any]:
    """Train and judge. One thread, so that runs can go side by side.

    A trial sees validation points alone. A final run keeps its best moment by validation
    points, as training keeps its best checkpoint, and is judged there on test points.
    """
    torch.set_num_threads(1)
    scene = open_scene(config, cache)
    if run.points == TEST:
        points = spread_points(scene.log, scene.split.test, config.points)
    else:
        points = spread_points(scene.log, scene.split.validation, config.search_points)
    judged = _evaluator(scene, points, config)
    if run.contender in REFERENCES:
        return _refer(run, config, scene, judged)
    started = time.perf_counter()
    try:
        parts = build_run(run, config, scene)
        if run.points == TEST:
            stop = spread_points(scene.log, scene.split.validation, STOP_POINTS)
            found = _final(run, config, parts, judged, _evaluator(scene, stop, config))
        else:
            train_seconds = _take(parts, run, 0, run.steps)
            found = _judged(parts.model, judged)
            found |= {"train_wall_seconds": round(train_seconds, 2), "curve": []}
    except (DataError, UsageError) as diverged:  # a finding, too: these settings are no good
        if "finite" not in str(diverged) and "diverged" not in str(diverged):
            raise
        found = {"map@20": 0.0, "diverged": str(diverged)}
    return {
        "key": run.key(),
        "run": asdict(run),
        **found,
        "seconds": round(run.steps * run.step_seconds, 3),
        "wall_seconds": round(time.perf_counter() - started, 2),
    }


def _evaluator(scene: Scene, points: Points, config: CompareConfig) -> PointEvaluator:
    return PointEvaluator(scene.log, scene.split, points, NEXT_ITEMS, config.model.history)


def _take(parts: Parts, run: CompareRun, first: int, last: int) -> float:
    """Steps `first` to `last`; how long they took."""
    start, clip = time.perf_counter(), parts.config.optimizer.clip
    for number in range(first, last):
        batch = parts.windows.batch(number)
        step(parts.model, parts.optimizer, batch, seed=run.seed, number=number, clip=clip)
    return time.perf_counter() - start


def _final(
    run: CompareRun,
    config: CompareConfig,
    parts: Parts,
    judged: PointEvaluator,
    stop: PointEvaluator,
) -> dict[str, Any]:
    """Train, looking at MOMENTS; judged as it was at the best of them."""
    forget_peak()
    model, few = parts.model, min(config.curve_points, len(judged.points))
    moments = {max(1, round(run.steps * m)): m for m in MOMENTS} | {run.steps: 1.0}
    curve: list[dict[str, Any]] = []
    best: tuple[float, float, dict[str, Tensor]] | None = None
    peak, train_seconds, done = None, 0.0, 0
    for number, share in sorted(moments.items()):
        train_seconds += _take(parts, run, done, number)
        done = number
        peak = peak or peak_bytes()  # judging takes memory of its own, which is not the method's
        valid = stop.few(*_rank(model, stop, len(stop.points)), len(stop.points))["map@20"]
        found = judged.few(*_rank(model, judged, few), few)
        seconds = round(number * run.step_seconds, 3)
        told = {"share": share, "step": number, "seconds": seconds, "validation": valid}
        curve.append(told | found)
        if best is None or valid > best[0]:
            best = (valid, share, _tensors(model))
    if best is None:
        raise ValueError("a run has at least one moment")
    model.load_state_dict(best[2], strict=False)
    return {
        **_judged(model, judged),
        "best_share": best[1],
        "train_wall_seconds": round(train_seconds, 2),
        "peak_bytes": peak,
        "scores_per_example": float(model.head.scores_per_example),
        "curve": curve,
        "curve_points": judged.block_sizes(few),
    }


def _tensors(model: SequenceModel) -> dict[str, Tensor]:
    """A copy of all that judging looks at."""
    state = model.state_dict()
    return {name: value.clone() for name, value in state.items() if isinstance(value, Tensor)}


def _rank(
    model: SequenceModel, judged: PointEvaluator, most: int
) -> tuple[Tensor, NDArray[np.float64]]:
    ranked, loss = judged.rank(model, most)
    if not np.isfinite(loss).all():
        raise DataError("the full softmax loss is not finite: training has diverged.")
    return ranked, loss


def _judged(model: SequenceModel, judged: PointEvaluator) -> dict[str, Any]:
    return scores(judged, *_rank(model, judged, len(judged.points)))


def _refer(
    run: CompareRun, config: CompareConfig, scene: Scene, judged: PointEvaluator
) -> dict[str, Any]:
    """Lists that need no training, at the points of all other runs."""
    loss = None
    if run.contender == TRUTH:
        if config.made is None:
            raise UsageError("nobody knows the true distribution of this log.")
        ranked, loss = rank_by_truth(config.made, scene.log, judged.points, judged.target)
    else:
        ranked = rank_by_counting(run.contender, scene.log, scene.split, judged.points)
    return {"key": run.key(), "run": asdict(run), **scores(judged, ranked, loss)}


def scores(
    judged: PointEvaluator, ranked: Tensor, loss: NDArray[np.float64] | None
) -> dict[str, Any]:
    """`PointEvaluator.scores`, and precision@1 and recall@20 by block, too."""
    found = judged.scores(ranked, loss)
    values = measure(ranked, torch.from_numpy(judged.target))
    for name in ("precision@1", "recall@20"):
        value = values[name].double().numpy()
        found[name] = round(float(value.mean()), 6)
        found["blocks"][name] = block_sums(value, judged.points.user)
    return found
