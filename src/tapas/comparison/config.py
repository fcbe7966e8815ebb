"""Settings of a comparison, saved with its results."""

import dataclasses
import math
from dataclasses import dataclass, field

from tapas.comparison.contenders import CONTENDERS, MOST_TRIALS, by_name, find_contender
from tapas.comparison.synthetic_log import SyntheticLogConfig
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig
from tapas.errors import UsageError
from tapas.heads import FlatHead
from tapas.heads.facts import default_num_samples
from tapas.shapes import check_positive
from tapas.training.config import LoopConfig, ModelConfig, OptimizerConfig, TrainConfig

MOST_SEEDS = 1_000
MADE = SyntheticLogConfig(
    num_users=40_000,
    num_items=100_000,
    num_groups=500,
    baskets_per_user=6,
    items_per_basket=5,
    exponent=0.7,  # the top 20 % of the items take about 60 % of the events, as in the paper
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareConfig:
    """One log, one encoder, one budget, the contenders, and how they are evaluated.

    The same for all contenders: log, split, encoder, dimension, batches and their order,
    optimizer family, n, budget in seconds of training and number of trials. `budget_seconds`
    are training time on one thread for each contender: half for its trials, evaluated on
    validation points, and half for its seeds, evaluated on test points.
    """

    log: LogSource | None = None  # left out: the log that `made` makes
    made: SyntheticLogConfig | None = None
    split: SplitConfig = field(default_factory=SplitConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)  # rows_lr is tuned
    batch: int = 64  # windows of history
    contenders: tuple[str, ...] = tuple(CONTENDERS)
    budget_seconds: float = 600.0
    samples: int | None = None  # n; left out: 1,000, or an eighth of few classes
    trials: int = 4
    seeds: int = 3
    least_steps: int = 20  # of a trial and of a seed; a contender with fewer is too slow
    points: int = 3_000  # test points of a final run
    curve_points: int = 1_000  # the first of these, during a run
    search_points: int = 1_500  # of validation
    pace_rounds: int = 3
    pace_seconds: float = 2.0  # of steps, for each contender and round
    settling_steps: int = 130  # before its pace is measured, of a method that adapts

    def __post_init__(self) -> None:
        if (self.log is None) == (self.made is None):
            raise UsageError(
                "a comparison needs one log: name files, or use the built-in one with --synthetic."
            )
        if not self.contenders:
            raise UsageError("no method to compare. Name some with --methods.")
        if not 0 < self.budget_seconds < math.inf:
            raise UsageError(
                f"the budget must be a time above 0, got {self.budget_seconds!r} seconds. Give "
                "--budget 10m, say."
            )
        for name in (
            "batch", "trials", "seeds", "least_steps", "points", "curve_points", "search_points",
            "pace_rounds", "settling_steps",
        ):  # fmt: skip
            check_positive(name, getattr(self, name))
        if self.seeds > MOST_SEEDS:
            raise UsageError(f"seeds must be at most {MOST_SEEDS:,}, got {self.seeds:,}.")
        if self.samples is not None:
            check_positive("num_samples", self.samples)
        if self.trials > MOST_TRIALS:
            raise UsageError(
                f"trials must be at most {MOST_TRIALS}, got {self.trials}: there are no more "
                "settings in the fixed list of every method."
            )
        if self.model.copy or self.model.follow:
            raise UsageError(
                "model.copy and model.follow mix counts into the lists of every method. Leave "
                "them out: methods are compared without."
            )
        for contender in by_name(self.contenders):
            if self.model.inputs == "shared" and not issubclass(contender.kind, FlatHead):
                raise UsageError(
                    f"the encoder cannot read the rows of '{contender.name}', which has none for "
                    "a class. Set model.inputs to 'own', or leave that method out."
                )
            for trial in contender.trials(self.trials):
                contender.head(self.samples or 1, trial.knob)  # an error before hours of work

    @property
    def trial_seconds(self) -> float:
        """Training time of each trial of each contender."""
        return self.budget_seconds / 2 / self.trials

    @property
    def final_seconds(self) -> float:
        """Training time of each seed of each contender."""
        return self.budget_seconds / 2 / self.seeds

    def num_samples(self, num_classes: int) -> int:
        """n with `num_classes` classes."""
        if self.samples is not None:
            return min(self.samples, num_classes)
        return default_num_samples(num_classes)

    def train_config(
        self,
        source: LogSource,
        num_samples: int,
        *,
        contender: str,
        rows_lr: float,
        knob: float | None,
        steps: int,
        seed: int,
        num_classes: int,
    ) -> TrainConfig:
        """One run, as `tapas train` would take it."""
        optimizer = dataclasses.replace(self.optimizer, rows_lr=rows_lr)
        head = find_contender(contender).head(num_samples, knob)
        chosen = head.options.get("num_samples")
        if isinstance(chosen, int):
            head = head.with_options(num_samples=min(chosen, num_classes))
        return TrainConfig(
            log=source,
            split=self.split,
            model=self.model,
            head=head,
            optimizer=optimizer,
            loop=LoopConfig(batch=self.batch, steps=max(1, steps), seed=seed),
        )


def synthetic(**changes: object) -> CompareConfig:
    """A comparison on the synthetic log, whose true distribution is known."""
    given: dict[str, object] = {
        "made": MADE,
        "split": SplitConfig(kind="group"),
        "model": ModelConfig(history=30),
        "batch": 80,
    }
    return CompareConfig(**(given | changes))  # type: ignore[arg-type]


def quick(**changes: object) -> CompareConfig:
    """A comparison that takes seconds: a small synthetic log, few contenders, short runs."""
    given: dict[str, object] = {
        "made": SyntheticLogConfig(
            num_users=300, num_items=2_000, num_groups=20, baskets_per_user=8
        ),
        "split": SplitConfig(kind="last", validation=5, test=5),
        "model": ModelConfig(dim=8, history=20),
        "batch": 8,
        "contenders": ("full", "sampled", "tapas"),
        "budget_seconds": 0.4,
        "samples": 16,
        "trials": 2,
        "seeds": 2,
        "least_steps": 1,
        "points": 60,
        "curve_points": 40,
        "search_points": 40,
        "pace_rounds": 2,
        "pace_seconds": 0.02,
        "settling_steps": 3,
    }
    return CompareConfig(**(given | changes))  # type: ignore[arg-type]
