"""The cells of bench_surface.py, the ratios in each, and what the targets say of them."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from measuring import Target, ratio_quartiles

C = 500_000
BATCHES = (32, 128, 512, 1024, 4096)
DIMS = (16, 64, 128, 256, 512)
SAMPLES = (64, 256, 1000, 8000)
THREADS = (2, 1)
R = 8
ONE, TWO = "ours r=1", f"ours r={R}"
PLAIN, TENSORFLOW, FLOOR = "plain PyTorch", "TensorFlow", "floor"
LARGE = "ours r=1, large logits"


class Cell(NamedTuple):
    """Sizes of a step, and the threads that it may use."""

    threads: int
    B: int
    D: int
    n: int

    def __str__(self) -> str:
        return f"B={self.B:,}, D={self.D}, n={self.n:,}"


Seconds = dict[str, list[float]]  # of a step, for each turn, by contender
Surface = dict[Cell, Seconds]


def grid(quick: bool = False) -> Iterator[Cell]:
    """All cells; those of one D together, so that tables of one D are in memory."""
    batches, dims, samples = (
        ((32, 1024), (64, 256), (64, 1000)) if quick else (BATCHES, DIMS, SAMPLES)
    )
    for dim in dims:
        for batch in batches:
            for num_samples in samples:
                for threads in THREADS[:1] if quick else THREADS:
                    yield Cell(threads, batch, dim, num_samples)


def surface_of(results: dict[str, Any], threads: int) -> Surface:
    """The cells of a record with this number of threads."""
    cells = (
        (Cell(*(cell[key] for key in Cell._fields)), cell["seconds"]) for cell in results["cells"]
    )
    return {cell: seconds for cell, seconds in cells if cell.threads == threads}


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two contenders, and whether it should be high or low."""

    numerator: str
    denominator: str
    kind: Literal["at least", "at most"]

    def __str__(self) -> str:
        return f"{self.numerator} / {self.denominator}"

    def of(self, seconds: Seconds) -> tuple[float, float, float] | None:
        """Median and quartiles over the turns; None where one of both was left out."""
        pair = [seconds.get(name) for name in (self.numerator, self.denominator)]
        return ratio_quartiles(*pair) if all(pair) else None

    def medians(self, surface: Surface) -> dict[Cell, float]:
        found = {cell: self.of(seconds) for cell, seconds in surface.items()}
        return {cell: values[0] for cell, values in found.items() if values is not None}


PLAIN_ONE = Ratio(PLAIN, ONE, "at least")
PLAIN_TWO = Ratio(PLAIN, TWO, "at least")
TWO_ONE = Ratio(TWO, ONE, "at most")
ONE_FLOOR = Ratio(ONE, FLOOR, "at most")
TENSORFLOW_ONE = Ratio(TENSORFLOW, ONE, "at least")
TENSORFLOW_TWO = Ratio(TENSORFLOW, TWO, "at least")
LARGE_ONE = Ratio(LARGE, ONE, "at most")


@dataclass(frozen=True, slots=True)
class Promise:
    """A bound on a ratio in the worst of some cells, or on the median over them."""

    ratio: Ratio
    bound: float
    where: str
    holds_in: Callable[[Cell], bool]
    of: Literal["worst", "median"] = "worst"

    def target(self, surface: Surface) -> Target | None:
        """Its reading with the quartiles of that cell, or over cells; None without cells."""
        readings = {
            cell: value
            for cell, value in self.ratio.medians(surface).items()
            if self.holds_in(cell)
        }
        if not readings:
            return None
        if self.of == "median":
            found = statistics.median(readings.values())
            return self._target("median of the cells", found)
        extreme = min if self.ratio.kind == "at least" else max
        cell = extreme(readings, key=lambda each: readings[each])
        return self._target(f"worst cell ({cell})", *self.ratio.of(surface[cell]))

    def _target(self, place: str, *reading: float) -> Target:
        middle, low, high = (*reading, None, None)[:3]
        return Target(
            measure=f"{self.ratio}, {self.where}: {place}",
            target=self.bound,
            kind=self.ratio.kind,
            reading=middle,
            low=low,
            high=high,
        )


PROMISES = (
    Promise(PLAIN_ONE, 1.6, "D <= 128", lambda cell: cell.D <= 128),
    Promise(PLAIN_ONE, 1.5, "D = 256", lambda cell: cell.D == 256),
    Promise(PLAIN_ONE, 1.2, "D = 512", lambda cell: cell.D == 512),
    Promise(PLAIN_ONE, 2.0, "all sizes", lambda cell: True, "median"),
    Promise(TWO_ONE, 1.25, "B >= 1024", lambda cell: cell.B >= 1024),
    Promise(TWO_ONE, 1.5, "B = 512", lambda cell: cell.B == 512),
    Promise(
        PLAIN_TWO,
        1.0,
        "B < 512, D <= 256, pools up to C / 10",
        lambda cell: cell.B < 512 and cell.D <= 256 and R * cell.n <= C / 10,
    ),
    Promise(ONE_FLOOR, 1.5, "B >= 512", lambda cell: cell.B >= 512),
    Promise(ONE_FLOOR, 1.5, "B >= 512", lambda cell: cell.B >= 512, "median"),
)


def missed(ratio: Ratio, cell: Cell, reading: float) -> bool:
    """Whether some bound on the ratio in this very cell is not kept."""
    bounds = [
        promise.bound
        for promise in PROMISES
        if promise.ratio == ratio and promise.of == "worst" and promise.holds_in(cell)
    ]
    if ratio.kind == "at least":
        return any(reading < bound for bound in bounds)
    return any(reading > bound for bound in bounds)


def verdicts(surface: Surface) -> list[Target]:
    """Readings of all promises for the cells of one number of threads."""
    found: Sequence[Target | None] = [promise.target(surface) for promise in PROMISES]
    return [target for target in found if target is not None]
