"""One training run of a comparison: its settings, training and evaluation."""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache as remember
from math import isnan
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.comparison.config import CompareConfig
from tapas.comparison.contenders import NEXT_ITEMS
from tapas.comparison.ledger import Result, short_key
from tapas.comparison.synthetic_log import (
    TRUTH,
    SyntheticLogConfig,
    cached_synthetic_log,
    rank_by_truth,
)
from tapas.data.event_log import EventLog
from tapas.data.prepare import prepare_log
from tapas.data.source import LogSource
from tapas.data.splits import EvalPoints, Split, split_log
from tapas.errors import DataError, UsageError
from tapas.evaluation.baselines import COUNTING, rank_by_counting
from tapas.evaluation.points import PointEvaluator, block_sums, sample_users
from tapas.evaluation.scores import metrics_per_example
from tapas.heads import Head
from tapas.peak_memory import forget_peak, peak_bytes
from tapas.training.build import TrainingSetup, build_training
from tapas.training.model import SequenceModel
from tapas.training.step import step

MOMENTS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)  # of a run, when it is evaluated
STOP_POINTS = 750  # of validation, to choose the best moment of a run
REFERENCES = (*COUNTING, TRUTH)
VALIDATION, TEST = "validation", "test"


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareRun:
    """Everything that the result depends on, besides the settings of the comparison."""

    contender: str  # or one of `REFERENCES`, which need no training
    rows_lr: float = 0.0
    knob: float | None = None
    num_samples: int = 0  # n, of contenders that sample
    steps: int = 0
    step_seconds: float = 0.0  # the contender's pace, alone on the machine
    seed: int = 0
    points: str = TEST  # or "validation", for choosing settings

    def key(self) -> str:
        return short_key(asdict(self))


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """The prepared log of a comparison and its split."""

    source: LogSource
    log: EventLog
    split: Split


def find_log(config: CompareConfig, cache: Path) -> LogSource:
    """The source of the log; a synthetic one is written the first time."""
    if config.log is not None:
        config.log.paths()
        return config.log
    path = cached_synthetic_log(config.made or SyntheticLogConfig(), cache)
    return LogSource(files=(str(path),), user="user", item="item", time="time")


@remember
def open_log(config: CompareConfig, cache: Path) -> OpenedLog:
    """Open and split the log, once in each process."""
    source = find_log(config, cache)
    log = prepare_log(source, cache)
    return OpenedLog(source, log, split_log(log, config.split))


def build_run(run: CompareRun, config: CompareConfig, opened: OpenedLog) -> TrainingSetup:
    """The model of `run`, its batches and its optimizer."""
    train = config.train_config(
        opened.source,
        run.num_samples,
        contender=run.contender,
        rows_lr=run.rows_lr,
        knob=run.knob,
        steps=run.steps,
        seed=run.seed,
        num_classes=opened.log.num_items,
    )
    return build_training(train, opened.log, opened.split)


def execute(run: CompareRun, config: CompareConfig, cache: Path) -> Result:
    """Train and evaluate, on one thread.

    A trial uses only validation points. A final run keeps its best moment by validation points,
    as training keeps its best checkpoint, and is evaluated there on test points.
    """
    torch.set_num_threads(1)
    opened = open_log(config, cache)
    if run.points == TEST:
        points = sample_users(opened.split.test, config.points)
    else:
        points = sample_users(opened.split.validation, config.search_points)
    evaluator = _evaluator(opened, points, config)
    if run.contender in REFERENCES:
        lists = reference_lists(run.contender, config.made, opened.split, evaluator)
        return {"key": run.key(), "run": asdict(run), **scores(evaluator, *lists)}

    def train() -> Result:
        parts = build_run(run, config, opened)
        if run.points == TEST:
            stop = sample_users(opened.split.validation, STOP_POINTS)
            return _final(run, config, parts, evaluator, _evaluator(opened, stop, config))
        seconds = train_and_evaluate(parts, [run.steps])
        found = scores(evaluator, *_rank(parts.model, evaluator, len(evaluator.points)))
        return found | {"train_wall_seconds": round(seconds, 2), "curve": []}

    started = time.perf_counter()
    return {
        "key": run.key(),
        "run": asdict(run),
        **found_or_diverged(train),
        "seconds": round(run.steps * run.step_seconds, 3),
        "wall_seconds": round(time.perf_counter() - started, 2),
    }


def _evaluator(opened: OpenedLog, points: EvalPoints, config: CompareConfig) -> PointEvaluator:
    rare = opened.log.item_keys.rare_id
    return PointEvaluator(opened.log, opened.split, points, NEXT_ITEMS, config.model.history, rare)


def _final(
    run: CompareRun,
    config: CompareConfig,
    parts: TrainingSetup,
    evaluator: PointEvaluator,
    stop: PointEvaluator,
) -> Result:
    """Train, evaluating at MOMENTS; the scores are those of the best moment."""
    forget_peak()
    model, few = parts.model, min(config.curve_points, len(evaluator.points))
    shares = {max(1, round(run.steps * m)): m for m in MOMENTS} | {run.steps: 1.0}
    curve: list[Result] = []
    peak = None

    def evaluate(number: int, train_seconds: float) -> float:
        nonlocal peak
        peak = peak or peak_bytes()  # before evaluation, whose memory is not the method's
        most = len(stop.points)
        valid = float(stop.quick_scores(*_rank(model, stop, most), most)["map@20"])
        seconds = round(number * run.step_seconds, 3)
        moment = {"share": shares[number], "step": number, "seconds": seconds, "validation": valid}
        curve.append(moment | evaluator.quick_scores(*_rank(model, evaluator, few), few))
        return valid

    train_seconds = train_and_evaluate(parts, shares, evaluate)
    best = max(curve, key=lambda moment: moment["validation"])
    return {
        **scores(evaluator, *_rank(model, evaluator, len(evaluator.points))),
        "best_share": best["share"],
        "train_wall_seconds": round(train_seconds, 2),
        "peak_bytes": peak,
        "scores_per_example": known_scores(model.head),
        "curve": curve,
        "curve_points": evaluator.block_sizes(few),
    }


def known_scores(head: Head) -> float | None:
    """Its scores per example; None if a method of the user's own does not count them."""
    scores = float(head.scores_per_example)
    return None if isnan(scores) else scores


def train_and_evaluate(
    parts: TrainingSetup,
    moments: Iterable[int],
    evaluate: Callable[[int, float], float | None] = lambda steps, seconds: None,
) -> float:
    """Train up to the last of `moments`; returns the seconds of all steps.

    At each moment `evaluate` is called with the number of steps and their seconds. If it returns
    a score, the model ends in the state of its best moment, the first of equals; if it returns
    None, in the state after the last step.
    """
    model, train = parts.model, parts.config
    best: tuple[float, dict[str, Tensor]] | None = None
    seconds, done = 0.0, 0
    for moment in sorted(moments):
        start = time.perf_counter()
        for number in range(done, moment):
            batch = parts.windows.batch(number)
            step(
                model, parts.optimizer, batch,
                seed=train.loop.seed, number=number, clip=train.optimizer.clip,
            )  # fmt: skip
        seconds += time.perf_counter() - start
        done = moment
        quality = evaluate(moment, seconds)
        if quality is not None and (best is None or quality > best[0]):
            state = model.state_dict().items()
            best = (quality, {n: v.clone() for n, v in state if isinstance(v, Tensor)})
    if best is not None:
        model.load_state_dict(best[1], strict=False)
    return seconds


def found_or_diverged(train: Callable[[], Result]) -> Result:
    """The result of `train`; if training diverged, a result with the reason."""
    try:
        return train()
    except (DataError, UsageError) as error:
        if "finite" not in str(error) and "diverged" not in str(error):
            raise
        return {"map@20": 0.0, "diverged": str(error)}


def _rank(
    model: SequenceModel, evaluator: PointEvaluator, most: int
) -> tuple[Tensor, NDArray[np.float64]]:
    ranked, loss = evaluator.rank(model, most)
    if not np.isfinite(loss).all():
        raise DataError("the full softmax loss is not finite: training has diverged.")
    return ranked, loss


def reference_lists(
    name: str,
    made: SyntheticLogConfig | None,
    split: Split,
    evaluator: PointEvaluator,
    log_name: str = "this log",
) -> tuple[Tensor, NDArray[np.float64] | None]:
    """Ranked lists of a baseline, and the losses if it is the true distribution."""
    if name != TRUTH:
        excluded = evaluator.options.excluded_class
        points = evaluator.points
        return rank_by_counting(name, evaluator.log, split, points, excluded_class=excluded), None
    if made is None:
        raise UsageError(f"the true distribution of {log_name} is not known.")
    return rank_by_truth(made, evaluator.log, evaluator.points, evaluator.target)


def scores(evaluator: PointEvaluator, ranked: Tensor, loss: NDArray[np.float64] | None) -> Result:
    """`PointEvaluator.scores` with precision@1, recall@20 and NDCG@20 by block."""
    found = evaluator.scores(ranked, loss)
    values = metrics_per_example(ranked, torch.from_numpy(evaluator.target))
    for name in ("precision@1", "recall@20", "ndcg@20"):
        value = values[name].double().numpy()
        found[name] = round(float(value.mean()), 6)
        found["blocks"][name] = block_sums(value, evaluator.points.user)
    return found
