"""From rounds to numbers: steps a second, overheads inside a round, collisions, traffic."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from experiments.synthetic.experiment import Cell, sampled
from experiments.system.config import MORE, System, finished_rounds
from tapas.comparison.ledger import Ledger
from tapas.errors import DataError

PAPER_RATES = ((181, 173), (92, 81))  # steps a second: n = 1,000 and 8,000; r = 1 and 8
Record = dict[str, Any]  # a segment of one cell in one round


class Spread(NamedTuple):
    """Over rounds."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """
    >>> spread([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.0, high=3.0)
    """
    return Spread(statistics.median(values), min(values), max(values))


class SystemResults:
    """All rounds of one system; every list has one number for each round, in order."""

    def __init__(self, ledger: Ledger):
        self.system, rounds = finished_rounds(ledger)
        try:
            self.cores: list[int] = sorted({result["cores"] for result in rounds})
            found = [{Cell(*row["cell"]): row for row in result["cells"]} for result in rounds]
            self._rows = {cell: [rows[cell] for rows in found] for cell in self.system.cells}
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{ledger.path} is not what `python -m experiments table-1` writes ({error!r}). "
                "Move it away and measure again."
            ) from error
        self.num_rounds = len(rounds)

    def rates(self, cell: Cell) -> list[float]:
        """Steps a second."""
        return self._each(cell, lambda found: found["steps"] / found["seconds"])

    def overheads(self, rule: str, n: int) -> list[float]:
        """How much longer a step takes with r=8 than with r=1; 0.1 is a tenth more."""
        one, eight = self.rates(sampled(n)), self.rates(Cell(rule, n, MORE))
        return [a / b - 1 for a, b in zip(one, eight, strict=True)]

    def slowdowns(self, slow: Cell, fast: Cell) -> list[float]:
        """How many times as long a step of `slow` takes."""
        return [b / a for a, b in zip(self.rates(slow), self.rates(fast), strict=True)]

    def rows_pushed(self, cell: Cell) -> list[float]:
        """In a step."""
        return self._each(cell, lambda found: found["rows_pushed"] / found["steps"])

    def rows_collided(self, cell: Cell) -> list[float]:
        """In a step."""
        return self._each(cell, lambda found: found["rows_collided"] / found["steps"])

    def collided_share(self, cell: Cell, segment: str = "measured") -> list[float]:
        """Of the rows pushed; a job that pushed none had no collision."""
        return self._each(
            cell, lambda found: found["rows_collided"] / max(1, found["rows_pushed"]), segment
        )

    def staleness(self, cell: Cell) -> list[float]:
        """Updates that a step had missed, on average."""
        return self._each(cell, _mean_staleness)

    def sent_bytes(self, cell: Cell) -> list[float]:
        """In a step."""
        return self._each(cell, lambda found: found["bytes_sent"] / found["steps"])

    def _each(
        self, cell: Cell, value: Callable[[Record], float], segment: str = "measured"
    ) -> list[float]:
        return [value(row[segment]) for row in self._rows[cell]]


def paper_rates(system: System) -> dict[tuple[int, int], int]:
    """The paper's steps a second by n and r, with its n in place of the system's."""
    return {
        (n, r): rate
        for n, row in zip(system.sizes, PAPER_RATES, strict=True)
        for r, rate in zip((1, MORE), row, strict=True)
    }


def paper_overhead(system: System, n: int) -> float:
    """The same for the overhead of r=8.

    >>> round(paper_overhead(System(), 1_000), 3), round(paper_overhead(System(), 8_000), 3)
    (0.046, 0.136)
    """
    rates = paper_rates(system)
    return rates[n, 1] / rates[n, MORE] - 1


def _mean_staleness(found: Record) -> float:
    missed: dict[str, int] = found["staleness"]
    steps = sum(missed.values())
    return sum(int(updates) * count for updates, count in missed.items()) / max(1, steps)
