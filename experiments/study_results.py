"""What claims are judged by: final results of the studies at hand, by study and cell."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from experiments.synthetic.experiment import Cell
from experiments.synthetic.studies import Study
from tapas.comparison.ledger import Ledger, Result
from tapas.errors import DataError
from tapas.evaluation.intervals import Interval

Evidence = tuple[str, str]  # verdict, words


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper says, the study that tests it, and what we found."""

    text: str
    study: str
    verdict: str  # "reproduced", "partly", "not" or "missing"
    evidence: str


class Book:
    """Final results of the studies at hand, by study and cell."""

    def __init__(
        self,
        studies: Mapping[str, tuple[Study, Ledger]],
        gradient_cost: Mapping[str, float] | None = None,
        *,
        fit: Callable[[Cell], Cell] = lambda cell: cell,
    ):
        self.studies, self.gradient_cost, self.fit = studies, gradient_cost, fit

    def results(self, study: str, cell: Cell) -> list[Result]:
        if study not in self.studies:
            raise DataError(f"{study} has not been run. `python -m experiments {study}` runs it.")
        found, ledger = self.studies[study]
        return found.experiment.results(ledger, self.fit(cell))

    def accuracy(self, study: str, cell: Cell) -> list[float]:
        return [result["accuracy"] for result in self.results(study, cell)]

    def loss(self, study: str, cell: Cell) -> list[float]:
        return [result["cross_entropy"] for result in self.results(study, cell)]


def points(change: Interval) -> str:
    """A change of accuracy in percentage points."""
    return f"{100 * change.mean:+.2f} ± {100 * change.half:.2f} points"
