"""Methods side by side at equal time and at equal quality, from curves, paces and seeds."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tapas.paper.ledger import Ledger, Result
from tapas.paper.real.intervals import Estimate, estimate, relative_gap
from tapas.paper.real.pace import Pace
from tapas.paper.real.plan import Cell, Plan

Paces = Mapping[Cell, Pace]


class Evidence:
    """Everything known about one set."""

    def __init__(self, plan: Plan, ledger: Ledger, paces: Sequence[Pace] = ()):
        self.plan, self.ledger = plan, ledger
        self.paces: Paces = {pace.cell: pace for pace in paces}

    @property
    def name(self) -> str:
        return self.plan.name

    def has(self, *cells: Cell) -> bool:
        return all(cell in self.plan.cells() and self.seeds(cell) for cell in cells)

    def seeds(self, cell: Cell) -> list[Result]:
        """By seed: what is there and did not diverge; nothing before the search is done."""
        if any(run not in self.ledger for run in self.plan.searches(self.ledger)):
            return []
        settings = self.plan.best(self.ledger, cell)
        runs = [self.plan.run(cell, *settings, seed) for seed in self.plan.cells()[cell]]
        found = [self.ledger[run] for run in runs if run in self.ledger]
        return [result for result in found if "diverged" not in result]

    def score(self, cell: Cell, metric: str = "map@20") -> Estimate:
        return estimate(self.seeds(cell), metric)

    def relative(self, ours: Cell, theirs: Cell, metric: str = "map@20") -> Estimate:
        return relative_gap(self.seeds(ours), self.seeds(theirs), metric)

    def at_equal_time(self, ours: Cell, theirs: Cell) -> Estimate | None:
        """MAP@20 of ours over theirs, less 1, when the slower one has used as much time as
        the other has in its whole run. None without paces."""
        if ours not in self.paces or theirs not in self.paces:
            return None
        costs = {cell: self.paces[cell].cost for cell in (ours, theirs)}
        time = min(costs.values()) * self.plan.real_set.steps
        parts = {
            cell: [read_curve(result, time / costs[cell]) for result in self.seeds(cell)]
            for cell in (ours, theirs)
        }
        return relative_gap(parts[ours], parts[theirs], "map@20")

    def samples_for(self, quality: float, cells: Sequence[Cell]) -> float:
        """How many times n sampled softmax needs for a MAP@20 of `quality`.

        Read between neighbours of `cells` on a logarithmic scale; infinity where none of them
        reaches it, and the least of them where all do.
        """
        known = [(cell.times, self.score(cell).mean) for cell in cells if self.has(cell)]
        return needed(known, quality)


def needed(known: Sequence[tuple[float, float]], quality: float) -> float:
    """The size at which a rising curve of (size, quality) first reaches `quality`.

    >>> round(needed([(1, 0.1), (4, 0.2)], 0.15), 9)
    2.0
    """
    for place, (size, value) in enumerate(known):
        if value >= quality:
            if place == 0:
                return float(size)
            before, low = known[place - 1]
            part = (quality - low) / (value - low)
            return float(math.exp(math.log(before) + part * math.log(size / before)))
    return math.inf


def read_curve(result: Result, step: float) -> Result:
    """`result` as it was at `step`, read between the moments when it was judged."""
    steps = [moment["step"] for moment in result["curve"]]
    by_block = np.array([moment["blocks"] for moment in result["curve"]])
    then = [float(np.interp(step, steps, column)) for column in by_block.T]
    return {
        "run": result["run"],
        "blocks": {"points": result["curve_points"], "map@20": then},
    }
