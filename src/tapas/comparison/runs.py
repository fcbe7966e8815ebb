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
from tapas.comparison.peak_memory import forget_peak, peak_bytes
from tapas.data.event_log import EventLog
from tapas.data.log_source import LogSource
from tapas.data.preparing import prepare_log
from tapas.data.splits import Split, split_log
from tapas.data.synthetic_log import SyntheticLogConfig, kept_log
from tapas.errors import DataError, UsageError
from tapas.paper.real.points import block_sums, spread_points
from tapas.paper.real.references import COUNTING, TRUTH, rank_by_counting, rank_by_truth
from tapas.paper.real.runs import Judge
from tapas.training.building import Parts, build
from tapas.training.evaluation import measure
from tapas.training.steps import step

MOMENTS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)  # of a run, when it is judged
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

    A trial sees validation points alone, a final run test points alone.
    """
    torch.set_num_threads(1)
    scene = open_scene(config, cache)
    if run.points == TEST:
        points = spread_points(scene.log, scene.split.test, config.points)
    else:
        points = spread_points(scene.log, scene.split.validation, config.search_points)
    judged = Judge(scene.log, scene.split, points, config.model.history)
    if run.contender in REFERENCES:
        return _refer(run, config, scene, judged)
    started = time.perf_counter()
    try:
        found = _train(run, config, scene, judged)
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


def _train(run: CompareRun, config: CompareConfig, scene: Scene, judged: Judge) -> dict[str, Any]:
    forget_peak()
    parts = build_run(run, config, scene)
    model, optimizer, clip = parts.model, parts.optimizer, parts.config.optimizer.clip
    moments = {max(1, round(run.steps * m)): m for m in MOMENTS} if run.points == TEST else {}
    moments[run.steps] = 1.0
    few = min(config.curve_points, len(judged.points))
    curve: list[dict[str, Any]] = []
    peak, train_seconds = None, 0.0
    for number in range(run.steps):
        start = time.perf_counter()
        batch = parts.windows.batch(number)
        step(model, optimizer, batch, seed=run.seed, number=number, clip=clip)
        train_seconds += time.perf_counter() - start
        if number + 1 not in moments:
            continue
        if not curve:  # judging takes memory of its own, which is not the method's
            peak = peak_bytes()
        whole = number + 1 == run.steps
        ranked, loss = judged.rank(model, len(judged.points) if whole else few)
        if not np.isfinite(loss).all():
            raise DataError(f"the full softmax loss is not finite at step {number}: diverged.")
        curve.append({
            "share": moments[number + 1],
            "step": number + 1,
            "seconds": round((number + 1) * run.step_seconds, 3),
            **judged.few(ranked, loss, few),
        })  # fmt: skip
    return {
        **scores(judged, ranked, loss),
        "train_wall_seconds": round(train_seconds, 2),
        "peak_bytes": peak,
        "scores_per_example": float(model.head.scores_per_example),
        "curve": curve if run.points == TEST else [],
        "curve_points": judged.block_sizes(few),
    }


def _refer(run: CompareRun, config: CompareConfig, scene: Scene, judged: Judge) -> dict[str, Any]:
    """Lists that need no training, at the points of all other runs."""
    loss = None
    if run.contender == TRUTH:
        if config.made is None:
            raise UsageError("nobody knows the true distribution of this log.")
        ranked, loss = rank_by_truth(config.made, scene.log, judged.points, judged.target)
    else:
        ranked = rank_by_counting(run.contender, scene.log, scene.split, judged.points)
    return {"key": run.key(), "run": asdict(run), **scores(judged, ranked, loss)}


def scores(judged: Judge, ranked: Tensor, loss: NDArray[np.float64] | None) -> dict[str, Any]:
    """`Judge.scores`, and precision@1 and recall@20 by block, too."""
    found = judged.scores(ranked, loss)
    values = measure(ranked, torch.from_numpy(judged.target))
    for name in ("precision@1", "recall@20"):
        value = values[name].double().numpy()
        found[name] = round(float(value.mean()), 6)
        found["blocks"][name] = block_sums(value, judged.points.user)
    return found
