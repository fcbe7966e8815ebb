"""Results of one set: scores, differences, and comparisons at equal time and equal quality."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.real.cells import SEEDS, SetCell, SetRuns
from experiments.real.pace import Pace
from experiments.real.sets import RealSet
from tapas.comparison.ledger import Ledger, Result
from tapas.errors import DataError
from tapas.evaluation.intervals import Interval, block_bootstrap, relative_difference

Paces = Mapping[SetCell, Pace]


class SetEvidence:
    """Results and step times of one set."""

    def __init__(self, set_runs: SetRuns, ledger: Ledger, paces: Sequence[Pace] = ()):
        self.set_runs, self.ledger = set_runs, ledger
        self.paces: Paces = {pace.cell: pace for pace in paces}

    @property
    def name(self) -> str:
        return self.set_runs.shown_name

    @property
    def real_set(self) -> RealSet:
        return self.set_runs.real_set

    def has(self, *cells: SetCell) -> bool:
        """Whether there is a seed that all of `cells` have."""
        return bool(self.common_seeds(*cells))

    def common_seeds(self, *cells: SetCell) -> set[int]:
        return set.intersection(
            *({result["run"]["seed"] for result in self.seeds(cell)} for cell in cells)
        )

    def describe_seeds(self, *cells: SetCell) -> str:
        """, one seed" if the interval does not include the variation between seeds."""
        return ", one seed" if len(self.common_seeds(*cells)) == 1 else ""

    def results(self, cell: SetCell) -> list[Result]:
        """Results of `cell` that exist, diverged ones included; may be empty."""
        try:
            settings = self.set_runs.best(self.ledger, cell)
        except DataError:  # its search is not finished, so none of its seeds has been run
            return []
        runs = [self.set_runs.run(cell, *settings, seed) for seed in SEEDS]
        return [self.ledger[run] for run in runs if run in self.ledger]

    def seeds(self, cell: SetCell) -> list[Result]:
        """Results of `cell` that did not diverge, by seed."""
        found = [result for result in self.results(cell) if "diverged" not in result]
        for result in found:
            if not {"run", "blocks", "curve", "curve_points"} <= result.keys():
                raise DataError(
                    f"{self.ledger.path}: the result with the key {result['key']} lacks what this "
                    "version writes. Remove its line, and the same command runs it again."
                )
        return found

    def score(self, cell: SetCell, metric: str = "map@20") -> Interval:
        return block_bootstrap(self.seeds(cell), metric)

    def relative(self, ours: SetCell, theirs: SetCell, metric: str = "map@20") -> Interval:
        return relative_difference(self.seeds(ours), self.seeds(theirs), metric)

    def at_equal_time(self, ours: SetCell, theirs: SetCell) -> Interval | None:
        """MAP@20 of ours over theirs, less 1, each at its best moment within the same time.

        The time is that of the faster one's complete run. None without step times, or if the
        slower one was not evaluated within it.
        """
        if ours not in self.paces or theirs not in self.paces:
            return None
        costs = {cell: self.paces[cell].cost for cell in (ours, theirs)}
        time = min(costs.values()) * self.real_set.steps
        parts = []
        for cell in (ours, theirs):
            found = best_moment(self.seeds(cell), time / costs[cell])
            if found is None:
                return None
            parts.append(found)
        return relative_difference(parts[0], parts[1], "map@20")

    def rows_for(self, ours: SetCell, cells: Sequence[SetCell]) -> float:
        """How many rows in the loss sampled softmax needs for the MAP@20 of `ours`.

        Read between neighbours of `cells`, of rising size, on a logarithmic scale, over the seeds
        that all of them and `ours` share; infinity where none of them reaches it.
        """
        known = [cell for cell in cells if self.has(cell, ours) and cell in self.paces]
        shared = self.common_seeds(ours, *known)

        def quality(cell: SetCell) -> float:
            seeds = [r for r in self.seeds(cell) if r["run"]["seed"] in shared]
            return block_bootstrap(seeds, "map@20").mean

        return needed([(self.paces[c].rows.in_loss, quality(c)) for c in known], quality(ours))


def needed(known: Sequence[tuple[float, float]], quality: float) -> float:
    """The size at which a curve of (size, quality) first reaches `quality`.

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


def best_moment(results: Sequence[Result], step: float) -> list[Result] | None:
    """`results` at the moment up to `step` when their mean MAP@20 was highest.

    `step` itself is interpolated between evaluations. None if it is before the first of them.
    """
    moments = [moment["step"] for moment in results[0]["curve"]]
    if step < moments[0]:
        return None
    candidates = [*(m for m in moments if m < step), min(step, moments[-1])]
    found = [[read_curve(result, moment) for result in results] for moment in candidates]
    return max(found, key=lambda then: sum(sum(r["blocks"]["map@20"]) for r in then))


def read_curve(result: Result, step: float) -> Result:
    """`result` at `step`, interpolated between evaluations."""
    steps = [moment["step"] for moment in result["curve"]]
    by_block = np.array([moment["blocks"] for moment in result["curve"]])
    then = [float(np.interp(step, steps, column)) for column in by_block.T]
    return {
        "run": result["run"],
        "blocks": {"points": result["curve_points"], "map@20": then},
    }
