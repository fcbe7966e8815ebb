"""One training run on a real set: what it is, and doing it."""

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.real.selection_rules import CURES
from experiments.real.sets import Place, RealSet, find_set
from tapas.comparison.synthetic_log import TRUTH, rank_by_truth
from tapas.data.event_log import EventLog
from tapas.data.splits import Split, split_log
from tapas.data.windows import gather
from tapas.errors import DataError, UsageError
from tapas.evaluation.baselines import COUNTING, rank_by_counting
from tapas.evaluation.points import PointEvaluator, spread_points
from tapas.evaluation.scores import bucket_classes
from tapas.training.build import Parts, build
from tapas.training.config import HeadConfig, LoopConfig, OptimizerConfig, TrainConfig
from tapas.training.model import SequenceModel
from tapas.training.step import step

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
            head=HeadConfig.of(
                num_samples=num_classes if self.method == "full" else self.num_samples,
                presample_factor=self.presample_factor,
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
        head.selection = CURES[run.method]
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
    judged = PointEvaluator(log, split, points, NEXT, mine.model.history)
    probed = Prober(
        log, split, spread_points(log, split.validation, PROBED), NEXT, mine.model.history
    )
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
    judged = PointEvaluator(
        log, split, spread_points(log, split.test, mine.points), NEXT, mine.model.history
    )
    loss = None
    if run.method == TRUTH:
        if mine.made is None:
            raise UsageError(f"nobody knows the true distribution of {run.set}.")
        ranked, loss = rank_by_truth(mine.made, log, judged.points, judged.target)
    else:
        ranked = rank_by_counting(run.method, log, split, judged.points)
    return {"key": run.key(), "run": asdict(run), **judged.scores(ranked, loss)}


class Prober(PointEvaluator):
    """Looks into the sampling of a model at fixed points, too."""

    def look(self, model: SequenceModel) -> dict[str, float]:
        start = np.asarray(self.log.offsets)[self.points.user]
        items, lengths, _ = gather(self.log.items, start, self.points.point, self.history)
        query = model.query(torch.from_numpy(items), torch.from_numpy(lengths))
        return look(model, query, torch.from_numpy(self.target), bucket_classes(self.train_counts))


CLASSES_PER_CHUNK = 1 << 16
BUCKETS = ("head", "middle", "tail", "unseen")


@torch.no_grad()
def look(
    model: SequenceModel, query: Tensor, target: Tensor, bucket_of: Tensor
) -> dict[str, float]:
    """Diagnoses of the sample, and of each bucket the model's mass and its mean log-probability.

    `query` (B, D), `target` (B, L) negative for padding, `bucket_of` (C,) from 0 to 3. O(C).
    """
    found: dict[str, float] = asdict(
        model.two_passes.diagnose(query, target.masked_fill(target < 0, -100))
    )
    table = model.class_rows
    partition = table.log_partition(query)
    mass, height = (torch.zeros(4, dtype=torch.float64, device=query.device) for _ in range(2))
    for start in range(0, table.num_classes, CLASSES_PER_CHUNK):
        stop = min(start + CLASSES_PER_CHUNK, table.num_classes)
        weight, bias = table.rows(torch.arange(start, stop))
        log_prob = torch.addmm(bias, query, weight.t()).sub_(partition[:, None])
        here = bucket_of[start:stop].to(query.device)
        height.index_add_(0, here, log_prob.mean(dim=0).double())
        mass.index_add_(0, here, log_prob.exp_().mean(dim=0).double())
    size = torch.bincount(bucket_of, minlength=4)
    for place, name in enumerate(BUCKETS):
        found[f"mass of {name}"] = float(mass[place])
        if size[place]:
            found[f"log-probability of {name}"] = float(height[place] / size[place])
    return {name: round(value, 6) for name, value in found.items()}
