"""One training run on a real set: what it is, and doing it."""

import dataclasses
import hashlib
import json
import time
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.data.event_log import EventLog
from tapas.data.splits import Points, Split, split_log, targets_of
from tapas.data.windows import gather
from tapas.errors import DataError, UsageError
from tapas.metrics import ndcg_at_k
from tapas.paper.real.points import block_sums, spread_points
from tapas.paper.real.probe import look
from tapas.paper.real.references import COUNTING, TRUTH, rank_by_counting, rank_by_truth
from tapas.paper.real.rules import CURES
from tapas.paper.real.sets import Place, RealSet, find_set
from tapas.training.building import Parts, build
from tapas.training.config import HeadConfig, LoopConfig, OptimizerConfig, TrainConfig
from tapas.training.evaluation import bucket_classes, judge, measure
from tapas.training.judging import rank_points
from tapas.training.model import SequenceModel
from tapas.training.steps import step

METHODS = ("full", "sampled", "top", "priority", *CURES, *COUNTING, TRUTH)
NEXT = 5  # items to predict, as in the paper
PROBED = 128  # queries looked into
MOMENTS = (0.1, 0.25, 0.45, 0.7, 0.85, 1.0)  # of a run, when it is judged


@dataclass(frozen=True, kw_only=True, slots=True)
class RealRun:
    """Everything that decides the outcome of a run; two equal ones give equal numbers."""

    set: str
    method: str
    num_samples: int = 0  # n
    presample_factor: int = 1  # r
    alpha: float = 0.75
    beta: float | None = None
    rows_lr: float
    temperature: float = 1.0
    anneal_to: float | None = None
    score_queries: int | None = None
    batch: int
    steps: int
    seed: int
    points: str = "test"  # or "validation", for choosing settings
    quick: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}.")
        if self.points not in ("test", "validation"):
            raise UsageError(f"points must be test or validation, got {self.points!r}.")

    def key(self) -> str:
        """A short name for all of the above."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def real_set(self) -> RealSet:
        found = find_set(self.set)
        return found.quick() if self.quick else found

    def config(self, place: Place, num_classes: int) -> TrainConfig:
        """The same as `tapas train` would take it."""
        mine = self.real_set
        return TrainConfig(
            log=mine.find(place),
            split=mine.split,
            model=mine.model,
            head=HeadConfig(
                samples=num_classes if self.method == "full" else self.num_samples,
                presample=self.presample_factor,
                selection="top" if self.method == "top" else "priority",
                temperature=self.temperature,
                anneal_to=self.anneal_to,
                alpha=self.alpha,
                beta=self.beta,
                score_queries=self.score_queries,
                next_items=NEXT,
            ),
            optimizer=OptimizerConfig(rows_lr=self.rows_lr),
            loop=LoopConfig(batch=self.batch, steps=self.steps, seed=self.seed),
        )


def open_set(real_set: RealSet, place: Place) -> tuple[EventLog, Split]:
    log = real_set.open(place)
    return log, split_log(log, real_set.split)


def build_run(run: RealRun, place: Place, log: EventLog, split: Split) -> Parts:
    """The model of `run`, its batches and its optimizer."""
    parts = build(run.config(place, log.num_items), log, split)
    if run.method in CURES:
        head = parts.model.two_passes
        head.config = dataclasses.replace(head.config, selection=CURES[run.method])
    return parts


def prepare(run: RealRun, place: Place) -> tuple[EventLog, Split, Parts]:
    log, split = open_set(run.real_set, place)
    return log, split, build_run(run, place, log, split)


def execute(run: RealRun, place: Place) -> dict[str, Any]:
    """Train, and judge along the way. One thread, so that runs can go side by side."""
    torch.set_num_threads(1)
    if run.method in (*COUNTING, TRUTH):
        return _refer(run, place)
    mine = run.real_set
    log, split, parts = prepare(run, place)
    if run.points == "test":
        points = spread_points(log, split.test, mine.points)
    else:
        points = spread_points(log, split.validation, mine.search_points)
    judged = Judge(log, split, points, mine.model.history)
    probed = Judge(log, split, spread_points(log, split.validation, PROBED), mine.model.history)
    model, optimizer, clip = parts.model, parts.optimizer, parts.config.optimizer.clip
    moments = {max(1, round(run.steps * m)) for m in MOMENTS} if run.points == "test" else set()
    probes = run.seed == 0 and run.num_samples == mine.num_samples
    curve, looks, seconds = [], [], 0.0
    for number in range(run.steps):
        start = time.perf_counter()
        batch = parts.windows.batch(number)
        try:
            step(model, optimizer, batch, seed=run.seed, number=number, clip=clip)
        except (DataError, UsageError) as diverged:  # a finding, too: these settings are no good
            if "finite" not in str(diverged) and "diverged" not in str(diverged):
                raise
            return {"key": run.key(), "run": asdict(run), "map@20": 0.0, "diverged": str(diverged)}
        seconds += time.perf_counter() - start
        if number + 1 in moments:
            whole = number + 1 == run.steps
            lists = judged.rank(model, len(judged.points) if whole else mine.curve_points)
            found = judged.few(*lists, mine.curve_points)
            curve.append({"step": number + 1, "seconds": round(seconds, 2), **found})
            if probes:
                looks.append({"step": number + 1, **probed.look(model)})
    if not moments:
        lists = judged.rank(model, len(judged.points))
    return {
        "key": run.key(),
        "run": asdict(run),
        **judged.scores(*lists),
        "train_seconds": round(seconds, 2),
        "torch": torch.__version__,
        "curve_points": judged.block_sizes(mine.curve_points),
        "curve": curve,
        "looks": looks,
    }


def _refer(run: RealRun, place: Place) -> dict[str, Any]:
    """Lists that need no training, at the points of all other runs."""
    mine = run.real_set
    log, split = open_set(mine, place)
    judged = Judge(log, split, spread_points(log, split.test, mine.points), mine.model.history)
    loss = None
    if run.method == TRUTH:
        if mine.made is None:
            raise UsageError(f"nobody knows the true distribution of {run.set}.")
        ranked, loss = rank_by_truth(mine.made, log, judged.points, judged.target)
    else:
        ranked = rank_by_counting(run.method, log, split, judged.points)
    return {"key": run.key(), "run": asdict(run), **judged.scores(ranked, loss)}


class Judge:
    """Judges models at fixed points, exactly, over all classes."""

    def __init__(self, log: EventLog, split: Split, points: Points, history: int):
        self.log, self.points, self.history = log, points, history
        self.target = targets_of(log, points, NEXT)
        self.train_counts = torch.from_numpy(split.train_counts)

    def rank(self, model: SequenceModel, most: int) -> tuple[Tensor, NDArray[np.float64]]:
        """Lists (P, 20) and losses (P,) of the first `most` points."""
        start = np.asarray(self.log.offsets)[self.points.user]
        ranked, loss = rank_points(
            model, self.log.items, start[:most], self.points.point[:most], self.target[:most],
            history=self.history,
        )  # fmt: skip
        return ranked, cast(Tensor, loss).double().numpy()

    def few(self, ranked: Tensor, loss: NDArray[np.float64], most: int) -> dict[str, Any]:
        """MAP@20 and the full softmax loss at the first `most` points; MAP@20 also by block."""
        found = self._scores(ranked[:most], loss[:most])
        return {**found, "blocks": found["blocks"]["map@20"]}

    def scores(self, ranked: Tensor, loss: NDArray[np.float64] | None) -> dict[str, Any]:
        """MAP@20 and loss at all points, with what a recommender engineer asks for."""
        target = torch.from_numpy(self.target)
        scores = judge(ranked, target, train_counts=self.train_counts)
        return {
            **self._scores(ranked, loss),
            "recall@20": round(scores.metrics["recall@20"].mean, 6),
            "ndcg@10": round(float(ndcg_at_k(ranked, target, 10).mean()), 6),
            "coverage": scores.coverage,
            "buckets": {
                name: {
                    "recall": round(bucket.recall.mean, 6) if bucket.recall else None,
                    "share": round(bucket.share, 6),
                    "targets": bucket.num_targets,
                }
                for name, bucket in scores.buckets.items()
            },
        }

    def _scores(self, ranked: Tensor, loss: NDArray[np.float64] | None) -> dict[str, Any]:
        size = len(ranked)
        precision = measure(ranked, torch.from_numpy(self.target[:size]))["map@20"].double().numpy()
        user = self.points.user[:size]
        found: dict[str, Any] = {"map@20": round(float(precision.mean()), 6)}
        blocks = {"points": self.block_sizes(size), "map@20": block_sums(precision, user)}
        if loss is not None:
            found["loss"] = round(float(loss.mean()), 5)
            blocks["loss"] = block_sums(loss, user)
        return {**found, "blocks": blocks}

    def block_sizes(self, most: int) -> list[float]:
        """How many of the first `most` points each block has."""
        user = self.points.user[:most]
        return block_sums(np.ones(len(user)), user)

    def look(self, model: SequenceModel) -> dict[str, float]:
        start = np.asarray(self.log.offsets)[self.points.user]
        items, lengths, _ = gather(self.log.items, start, self.points.point, self.history)
        query = model.query(torch.from_numpy(items), torch.from_numpy(lengths))
        return look(model, query, torch.from_numpy(self.target), bucket_classes(self.train_counts))
