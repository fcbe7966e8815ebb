"""The runs of every set: the same search for every method, then final runs with several seeds.

Searches use validation points, a separate seed and fewer steps. First
the learning rate of the rows, with sampled softmax (n, alpha 0.75): it holds for every
method, as batches and encoder do. Then alpha, for each of sampled softmax, top and priority
with n samples; a method keeps its alpha for every other number of samples. Full softmax has
no proposal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from experiments.real.runs import RealRun
from experiments.real.sets import REFERENCES, RealSet
from tapas.comparison.ledger import Ledger, Result
from tapas.errors import DataError

SEARCH_SEED = 1_000  # never among the seeds of a figure
FIRST_ALPHA = 0.75
LRS = (0.1, 0.3, 1.0)
ALPHAS = (0.0, 0.5, 0.75, 1.0)
R = 8


class SetCell(NamedTuple):
    """A method with its number of samples and r: one curve of a figure."""

    method: str  # "full", "sampled", "top" or "priority"
    times: float = 1  # num_samples is this many times the set's n
    r: int = 1

    def num_samples(self, n: int) -> int:
        """0 for full softmax, which draws none."""
        return 0 if self.method == "full" else round(self.times * n)

    def words(self, n: int) -> str:
        if self.method == "full":
            return "full softmax"
        size = f"{self.num_samples(n):,}"
        return f"sampled, n={size}" if self.method == "sampled" else f"{self.method}, n={size}, r=8"


SAMPLED, TOP, PRIORITY = SetCell("sampled"), SetCell("top", 1, R), SetCell("priority", 1, R)
SAMPLED_8, TOP_8, PRIORITY_8 = (
    SetCell("sampled", 8),
    SetCell("top", 8, R),
    SetCell("priority", 8, R),
)
SAMPLED_2, SAMPLED_4, SAMPLED_64 = (
    SetCell("sampled", 2),
    SetCell("sampled", 4),
    SetCell("sampled", 64),
)
SAMPLED_EIGHTH, PRIORITY_EIGHTH = SetCell("sampled", 1 / 8), SetCell("priority", 1 / 8, R)
FULL = SetCell("full")
SMALL_CELLS = (SAMPLED, TOP, PRIORITY)
HALF_CORRECTED = SetCell("priority, half corrected", 1, R)
NOT_CORRECTED = SetCell("priority, not corrected", 1, R)
PAPER_CELLS = (*SMALL_CELLS, SAMPLED_8, TOP_8, PRIORITY_8)
# how many seeds a cell gets where it is expensive; three elsewhere
_LARGE = {
    TOP: 2, PRIORITY_8: 1, TOP_8: 1, SAMPLED_2: 1, SAMPLED_4: 0, SAMPLED_64: 0, FULL: 0,
    SAMPLED_EIGHTH: 1, PRIORITY_EIGHTH: 1,
}  # fmt: skip
_SMALL = {SAMPLED_EIGHTH: 2, PRIORITY_EIGHTH: 2, TOP_8: 1, SAMPLED_2: 1, SAMPLED_4: 1}
FEWER_SEEDS: dict[str, dict[SetCell, int]] = {
    "linux": _LARGE,
    "wikipedia": _LARGE,
    "synthetic": _LARGE,
    "rust": {**_SMALL, PRIORITY_8: 2, SAMPLED_64: 0, FULL: 0},
    "grocery": {**_SMALL, SAMPLED_64: 1, FULL: 1},
}
CELLS = (
    SAMPLED_EIGHTH, PRIORITY_EIGHTH, *PAPER_CELLS, SAMPLED_2, SAMPLED_4, SAMPLED_64, FULL
)  # fmt: skip
SEEDS = (0, 1, 2)


QUICK_NAME = "made-up"


class SetRuns:
    """The runs of one set; results are read from a ledger."""

    def __init__(self, real_set: RealSet, *, quick: bool = False):
        self.name, self.is_quick = real_set.name, quick
        self.real_set = real_set.quick() if quick else real_set

    @property
    def shown_name(self) -> str:
        """The name on pages and in the terminal; the log of a quick run is not that of the set."""
        return QUICK_NAME if self.is_quick else self.name

    def run(self, cell: SetCell, lr: float, alpha: float, seed: int) -> RealRun:
        mine = self.real_set
        return RealRun(
            set=self.name,
            method=cell.method,
            num_samples=cell.num_samples(mine.num_samples),
            presample_factor=cell.r,
            alpha=alpha,
            rows_lr=lr,
            batch=mine.batch,
            steps=mine.steps,
            seed=seed,
            quick=self.is_quick,
        )

    def trial(self, cell: SetCell, lr: float, alpha: float) -> RealRun:
        """A shorter run on validation points, for the search."""
        run = self.run(cell, lr, alpha, SEARCH_SEED)
        return replace(run, steps=self.real_set.search_steps, points="validation")

    def cells(self) -> dict[SetCell, tuple[int, ...]]:
        """Every cell with its seeds."""
        fewer = FEWER_SEEDS[self.name]
        return {c: SEEDS[: fewer.get(c, len(SEEDS))] for c in CELLS if fewer.get(c) != 0}

    def learning_rates(self, ledger: Ledger) -> list[RealRun]:
        return [self.trial(SAMPLED, lr, FIRST_ALPHA) for lr in LRS]

    def alphas(self, ledger: Ledger) -> list[RealRun]:
        return [
            self.trial(cell, self.best_lr(ledger), alpha)
            for cell in SMALL_CELLS
            for alpha in ALPHAS
        ]

    def references(self, ledger: Ledger) -> list[RealRun]:
        """Baselines, which need no training."""
        return [
            RealRun(
                set=self.name, method=name, rows_lr=0.0, batch=0, steps=0, seed=0,
                quick=self.is_quick,
            )
            for name in REFERENCES[self.name]
        ]  # fmt: skip

    def corrections(self, ledger: Ledger) -> list[RealRun]:
        """Priority with its weights at lower powers, run as a search."""
        settings = self.best(ledger, PRIORITY)
        return [self.trial(cell, *settings) for cell in (HALF_CORRECTED, NOT_CORRECTED)]

    def searches(self, ledger: Ledger) -> list[RealRun]:
        """The runs that `best` needs; those of alpha only if the learning rates have been run."""
        rates = self.learning_rates(ledger)
        return rates if ledger.missing(rates) else [*rates, *self.alphas(ledger)]

    def final_runs(self, ledger: Ledger) -> list[RealRun]:
        """Ordered by seed, so that an interrupted figure has complete seeds."""
        return [
            self.run(cell, *self.best(ledger, cell), seed)
            for seed in SEEDS
            for cell, seeds in self.cells().items()
            if seed in seeds
        ]

    @property
    def stages(self) -> tuple[Callable[[Ledger], list[RealRun]], ...]:
        return (
            self.references,
            self.learning_rates,
            self.alphas,
            self.corrections,
            self.final_runs,
        )

    def best_lr(self, ledger: Ledger) -> float:
        return max(LRS, key=lambda lr: _score(ledger, self.trial(SAMPLED, lr, FIRST_ALPHA)))

    def best(self, ledger: Ledger, cell: SetCell) -> tuple[float, float]:
        """Learning rate and alpha with the highest MAP@20 on validation points."""
        lr = self.best_lr(ledger)
        if cell.method == "full":
            return lr, FIRST_ALPHA
        searched = SetCell(cell.method, 1, cell.r)
        return lr, max(ALPHAS, key=lambda alpha: _score(ledger, self.trial(searched, lr, alpha)))


def _score(ledger: Ledger, run: RealRun) -> float:
    if run not in ledger:
        raise DataError(
            f"the search on {run.set} is not finished; `python -m experiments figure-3` continues "
            "where it stopped."
        )
    return float(ledger[run]["map@20"])


ALL_QUERIES = 1 << 20  # more than any batch has


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One value of one setting."""

    setting: str
    value: float | str
    run: RealRun
    is_default: bool = False

    @property
    def words(self) -> str:
        if isinstance(self.value, str):
            return self.value
        if self.setting == "beta" and self.is_default:
            return "of a class seen once"
        return "all" if self.value == ALL_QUERIES else f"{self.value:,.4g}"


def around_the_default(
    set_runs: SetRuns, ledger: Ledger, betas: Sequence[float]
) -> list[SweepPoint]:
    """Every setting of the head and the batch; `betas` are floors besides the default."""
    base = set_runs.trial(PRIORITY, *set_runs.best(ledger, PRIORITY))
    n, batch = base.num_samples, base.batch
    values: dict[str, dict[float, RealRun]] = {
        "n": {n * m / 4: replace(base, num_samples=n * m // 4) for m in (1, 16)},
        "r": {r: replace(base, presample_factor=r) for r in (2, 4, 32)},
        "tau": {t: replace(base, temperature=t) for t in (0.5, 2.0)},
        "beta": {b: replace(base, beta=b) for b in betas},
        "score_queries": {q: replace(base, score_queries=q) for q in (8, 256, ALL_QUERIES)},
        "batch": {batch * m / 4: replace(base, batch=batch * m // 4) for m in (1, 16)},
    }
    default = {"n": n, "r": base.presample_factor, "tau": 1.0, "beta": 0.0, "score_queries": 64}
    default["batch"] = batch
    trials = []
    for setting, runs in values.items():
        runs[default[setting]] = base
        trials += [SweepPoint(setting, v, run, run is base) for v, run in sorted(runs.items())]
    return trials


def larger_floor(set_runs: SetRuns, ledger: Ledger, num_events: int) -> list[float]:
    """The floor of a class seen a hundred times among `num_events`, if it is below 1."""
    _, alpha = set_runs.best(ledger, PRIORITY)
    floor = (100 / num_events) ** alpha if num_events > 100 else 1.0
    return [floor] if floor < 1 else []


def floors_run(ledger: Ledger) -> list[float]:
    """The floors that `ledger` has tried."""
    tried = {result["run"].get("beta") for result in ledger.results.values()}
    return sorted(floor for floor in tried if floor is not None)


def top_variants(set_runs: SetRuns, ledger: Ledger) -> list[SweepPoint]:
    """The paper's rule, variants of it, and other rules."""
    top = _longer(set_runs.trial(TOP, *set_runs.best(ledger, TOP)))
    runs = {
        "top": top,
        "top, τ = 0.3": replace(top, temperature=0.3),
        "top, τ = 3": replace(top, temperature=3.0),
        "top, τ from 4 to 1": replace(top, temperature=4.0, anneal_to=1.0),
        "top, τ from 1 to 0.1": replace(top, temperature=1.0, anneal_to=0.1),
        "top, half of the places random": replace(top, method="top with a floor"),
        "top, a vote for each query": replace(top, method="top per query"),
    }
    for cell in (SAMPLED, PRIORITY):
        runs[cell.method] = _longer(set_runs.trial(cell, *set_runs.best(ledger, cell)))
    for method in ("priority, half corrected", "priority, not corrected"):
        runs[method] = replace(runs["priority"], method=method)
    return [SweepPoint("rule", name, run, name == "top") for name, run in runs.items()]


def _longer(run: RealRun) -> RealRun:
    return replace(run, steps=2 * run.steps)


def known(trials: list[SweepPoint], ledger: Ledger) -> list[tuple[SweepPoint, Result]]:
    """The trials that have been run."""
    return [(trial, ledger[trial.run]) for trial in trials if trial.run in ledger]
