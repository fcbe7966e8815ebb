"""One training run on a real set: its settings, training and evaluation."""

from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from experiments.real.selection_rules import VARIANTS
from experiments.real.sets import Place, RealSet, find_set
from tapas.comparison.contenders import NEXT_ITEMS
from tapas.comparison.ledger import Result, short_key
from tapas.comparison.runs import (
    REFERENCES,
    TEST,
    VALIDATION,
    found_or_diverged,
    reference_lists,
    train_and_evaluate,
)
from tapas.data.event_log import EventLog
from tapas.data.splits import Split, split_log
from tapas.data.windows import gather_histories
from tapas.errors import UsageError
from tapas.evaluation.points import PointEvaluator, spread_points
from tapas.evaluation.scores import bucket_classes
from tapas.training.build import TrainingSetup, build_training
from tapas.training.config import HeadConfig, LoopConfig, OptimizerConfig, TrainConfig
from tapas.training.model import SequenceModel

METHODS = ("full", "sampled", "top", "priority", *VARIANTS, *REFERENCES)
PROBED = 128  # queries at which the sampling is measured
MOMENTS = (0.1, 0.25, 0.45, 0.7, 0.85, 1.0)  # of a run, when it is evaluated


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
    points: str = TEST  # or "validation", for choosing settings
    quick: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}.")
        if self.points not in (TEST, VALIDATION):
            raise UsageError(f"points must be test or validation, got {self.points!r}.")

    def key(self) -> str:
        return short_key(asdict(self))

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
                next_items=NEXT_ITEMS,
            ),
            optimizer=OptimizerConfig(rows_lr=self.rows_lr),
            loop=LoopConfig(batch=self.batch, steps=self.steps, seed=self.seed),
        )


def open_set(real_set: RealSet, place: Place) -> tuple[EventLog, Split]:
    log = real_set.open(place)
    return log, split_log(log, real_set.split)


def build_run(run: RealRun, place: Place, log: EventLog, split: Split) -> TrainingSetup:
    """The model of `run`, its batches and its optimizer."""
    parts = build_training(run.config(place, log.num_items), log, split)
    if run.method in VARIANTS:
        head = parts.model.tapas_head
        head.selection = VARIANTS[run.method]
    return parts


def execute(run: RealRun, place: Place) -> Result:
    """Train and evaluate, on one thread, so that several runs fit on one machine."""
    torch.set_num_threads(1)
    mine = run.real_set
    log, split = open_set(mine, place)
    if run.points == TEST:
        points = spread_points(log, split.test, mine.points)
    else:
        points = spread_points(log, split.validation, mine.search_points)
    evaluator = PointEvaluator(log, split, points, NEXT_ITEMS, mine.model.history)
    if run.method in REFERENCES:
        found = evaluator.scores(*reference_lists(run.method, mine.made, split, evaluator, run.set))
    else:
        found = found_or_diverged(partial(_train, run, place, evaluator, split))
    return {"key": run.key(), "run": asdict(run), **found}


def _train(run: RealRun, place: Place, evaluator: PointEvaluator, split: Split) -> Result:
    """Runs of the first seed with the set's n also measure the sampling, in "looks"."""
    mine, log = run.real_set, evaluator.log
    parts = build_run(run, place, log, split)
    model, few = parts.model, mine.curve_points
    probes = run.seed == 0 and run.num_samples == mine.num_samples
    seen = spread_points(log, split.validation, PROBED)
    probed = Prober(log, split, seen, NEXT_ITEMS, mine.model.history)
    curve: list[Result] = []
    looks: list[Result] = []
    final: Result = {}

    def evaluate(number: int, seconds: float) -> None:
        last = number == run.steps
        lists = evaluator.rank(model, len(evaluator.points) if last else few)
        if last:
            final.update(evaluator.scores(*lists))
        if run.points == TEST:
            found = evaluator.quick_scores(*lists, few)
            curve.append({"step": number, "seconds": round(seconds, 2), **found})
            if probes:
                looks.append({"step": number, **probed.measure(model)})

    parts_of_run = MOMENTS if run.points == TEST else (1.0,)
    moments = {max(1, round(run.steps * part)) for part in parts_of_run}
    seconds = train_and_evaluate(parts, moments, evaluate)
    return {
        **final,
        "train_seconds": round(seconds, 2),
        "torch": torch.__version__,
        "curve_points": evaluator.block_sizes(few),
        "curve": curve,
        "looks": looks,
    }


class Prober(PointEvaluator):
    """Also measures the sampling of a model at fixed points."""

    def measure(self, model: SequenceModel) -> dict[str, float]:
        start = np.asarray(self.log.offsets)[self.points.user]
        items, lengths, _ = gather_histories(
            self.log.items, start, self.points.point, self.options.history
        )
        query = model.query(torch.from_numpy(items), torch.from_numpy(lengths))
        return probe_model(
            model, query, torch.from_numpy(self.target), bucket_classes(self.train_counts)
        )


CLASSES_PER_CHUNK = 1 << 16
BUCKETS = ("head", "middle", "tail", "unseen")


@torch.no_grad()
def probe_model(
    model: SequenceModel, query: Tensor, target: Tensor, bucket_of: Tensor
) -> dict[str, float]:
    """Diagnosis of the sample, and the model's mass and mean log-probability of each bucket.

    `query` (B, D), `target` (B, L) negative for padding, `bucket_of` (C,) from 0 to 3. O(C).
    """
    found: dict[str, float] = asdict(
        model.tapas_head.diagnose(query, target.masked_fill(target < 0, -100))
    )
    table = model.output_table
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
