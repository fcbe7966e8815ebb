"""One setting at a time, around priority with n samples and r=8, and cures for the paper's rule.

Judged on validation points with one seed: for choosing defaults, and to see what matters.
Settings after the steps of a search; cures after twice as many, because the harm they are
for takes time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tapas.paper.ledger import Ledger, Result
from tapas.paper.real.plan import PRIORITY, SAMPLED, TOP, Plan
from tapas.paper.real.runs import RealRun

ALL_QUERIES = 1 << 20  # more than any batch has


@dataclass(frozen=True, slots=True)
class Trial:
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


def around_the_default(plan: Plan, ledger: Ledger, betas: Sequence[float]) -> list[Trial]:
    """Every setting of the head and the batch; `betas` are floors beside that of the start."""
    base = plan.trial(PRIORITY, *plan.best(ledger, PRIORITY))
    n, batch = base.num_samples, base.batch
    values: dict[str, dict[float, RealRun]] = {
        "n": {n * m / 4: replace(base, num_samples=n * m // 4) for m in (1, 16)},
        "r": {r: replace(base, presample_factor=r) for r in (2, 4, 32)},
        "tau": {t: replace(base, temperature=t) for t in (0.5, 2.0)},
        "beta": {b: replace(base, beta=b) for b in betas},
        "score_queries": {q: replace(base, score_queries=q) for q in (8, 256, ALL_QUERIES)},
        "batch": {batch * m / 4: replace(base, batch=batch * m // 4) for m in (1, 16)},
    }
    own = {"n": n, "r": base.presample_factor, "tau": 1.0, "beta": 0.0, "score_queries": 64}
    own["batch"] = batch
    trials = []
    for setting, runs in values.items():
        runs[own[setting]] = base
        trials += [Trial(setting, v, run, run is base) for v, run in sorted(runs.items())]
    return trials


def larger_floor(plan: Plan, ledger: Ledger, num_events: int) -> list[float]:
    """The floor of a class seen a hundred times among `num_events`, if there is room for it."""
    _, alpha = plan.best(ledger, PRIORITY)
    floor = (100 / num_events) ** alpha if num_events > 100 else 1.0
    return [floor] if floor < 1 else []


def floors_run(ledger: Ledger) -> list[float]:
    """The floors that `ledger` has tried."""
    tried = {result["run"].get("beta") for result in ledger.results.values()}
    return sorted(floor for floor in tried if floor is not None)


def cures(plan: Plan, ledger: Ledger) -> list[Trial]:
    """The paper's rule, what might save it, and what it competes with."""
    top = _longer(plan.trial(TOP, *plan.best(ledger, TOP)))
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
        runs[cell.method] = _longer(plan.trial(cell, *plan.best(ledger, cell)))
    for method in ("priority, half corrected", "priority, not corrected"):
        runs[method] = replace(runs["priority"], method=method)
    return [Trial("rule", name, run, name == "top") for name, run in runs.items()]


def _longer(run: RealRun) -> RealRun:
    return replace(run, steps=2 * run.steps)


def known(trials: list[Trial], ledger: Ledger) -> list[tuple[Trial, Result]]:
    """The trials that have been run."""
    return [(trial, ledger[trial.run]) for trial in trials if trial.run in ledger]
