"""The runs of a figure: a search on validation points, then final runs with several seeds.

The paper gives no learning rate, temperature or schedule. Every cell (method, n, r) gets
the same search: the learning rate at temperature 1 first, then, where there is a second
pass, the temperature. A cell of several shards takes what was found for one. `best` sees
validation results only.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from experiments.synthetic.runs import Run, execute
from tapas.comparison.ledger import Ledger, Result
from tapas.comparison.process_pool import Progress, run_missing
from tapas.errors import DataError

SEARCH_SEED = 1_000  # never among the seeds of a figure


class Temperature(NamedTuple):
    """Constant, or annealed linearly over the run."""

    start: float = 1.0
    end: float | None = None

    def __str__(self) -> str:
        return f"{self.start:g}" if self.end is None else f"{self.start:g} to {self.end:g}"


class Cell(NamedTuple):
    """A method with its sizes: one curve of a figure."""

    method: str  # "full", "sampled", "top" or "priority"
    num_samples: int = 0  # n
    presample_factor: int = 1  # r
    temperature: Temperature | None = None  # None: found by the search
    num_shards: int = 1  # m
    moving: bool = False  # classes change shards in every step

    @property
    def unsharded(self) -> "Cell":
        """The same on one shard, whose settings hold for any number of them."""
        return self._replace(num_shards=1, moving=False)

    def __str__(self) -> str:
        if self.method == "full":
            return "full softmax"
        rule = "" if self.method == "sampled" else f", {self.method}"
        tau = "" if self.temperature is None else f", τ={self.temperature}"
        shards = "" if self.num_shards == 1 else f", {self.num_shards} shards"
        shards += ", drawn anew in every step" if self.moving else ""
        return f"n={self.num_samples}, r={self.presample_factor}{rule}{tau}{shards}"


def sampled(n: int) -> Cell:
    """r=1: sampled softmax."""
    return Cell("sampled", n, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """Everything that decides the numbers of one figure."""

    name: str
    task: str
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    steps: int
    search_steps: int
    batch: int
    evaluate_every: int
    lrs: tuple[float, ...]
    temperatures: tuple[Temperature, ...] = ()
    l2: float = 0.0
    hidden: int | None = None
    looks: int = 0  # draws for measuring the overlap of every final run

    def run(self, cell: Cell, lr: float, temperature: Temperature, seed: int) -> Run:
        """A final run."""
        return Run(
            task=self.task,
            method="top" if cell.method == "sampled" else cell.method,
            num_samples=cell.num_samples,
            presample_factor=cell.presample_factor,
            lr=lr,
            temperature=temperature.start,
            anneal_to=temperature.end,
            steps=self.steps,
            seed=seed,
            batch=self.batch,
            l2=self.l2,
            hidden=self.hidden,
            evaluate_every=self.evaluate_every,
            num_shards=cell.num_shards,
            moving=cell.moving,
            looks=self.looks if cell.presample_factor > 1 else 0,
        )

    def trial(self, cell: Cell, lr: float, temperature: Temperature) -> Run:
        """A shorter run on validation points, for the search."""
        return replace(
            self.run(cell.unsharded, lr, temperature, SEARCH_SEED),
            looks=0,
            steps=self.search_steps,
            evaluate_every=self.search_steps,
            judge="validation",
        )

    def learning_rates(self, ledger: Ledger) -> list[Run]:
        return [self._lr_trial(cell, lr) for cell in self.cells for lr in self.lrs]

    def other_temperatures(self, ledger: Ledger) -> list[Run]:
        return [
            self.trial(cell, self.best_lr(ledger, cell), temperature)
            for cell in self.cells
            if cell.presample_factor > 1 and cell.temperature is None
            for temperature in self.temperatures
        ]

    def _lr_trial(self, cell: Cell, lr: float) -> Run:
        return self.trial(cell, lr, cell.temperature or Temperature())

    def final_runs(self, ledger: Ledger) -> list[Run]:
        """Ordered by seed, so that an interrupted figure has complete seeds."""
        return [
            self.run(cell, *self.best(ledger, cell), seed)
            for seed in self.seeds
            for cell in self.cells
        ]

    @property
    def stages(self) -> tuple[Callable[[Ledger], list[Run]], ...]:
        return (self.learning_rates, self.other_temperatures, self.final_runs)

    def best_lr(self, ledger: Ledger, cell: Cell) -> float:
        return max(self.lrs, key=lambda lr: _score(ledger, self._lr_trial(cell, lr)))

    def best(self, ledger: Ledger, cell: Cell) -> tuple[float, Temperature]:
        """Learning rate and temperature with the highest validation accuracy."""
        lr = self.best_lr(ledger, cell)
        if cell.temperature is not None:
            return lr, cell.temperature
        if cell.presample_factor == 1:
            return lr, Temperature()
        options = (Temperature(), *self.temperatures)
        return lr, max(options, key=lambda t: _score(ledger, self.trial(cell, lr, t)))

    def results(self, ledger: Ledger, cell: Cell) -> list[Result]:
        """Results of the final runs of `cell`, by seed."""
        settings = self.best(ledger, cell)
        runs = [self.run(cell, *settings, seed) for seed in self.seeds]
        missing = [run for run in runs if run not in ledger]
        if missing:
            raise DataError(
                f"{self.name} is not finished: {len(missing)} of {len(runs)} seeds of {cell} are "
                f"missing. `python -m experiments {self.name}` continues where it stopped."
            )
        return [ledger[run] for run in runs]


def _score(ledger: Ledger, run: Run) -> float:
    if run not in ledger:
        raise DataError(
            "the search is not finished; `python -m experiments` with the same name continues "
            "where it stopped."
        )
    return float(ledger[run]["accuracy"])


def run_experiment(
    experiment: Experiment,
    ledger: Ledger,
    progress: Callable[[str], Progress],
    *,
    workers: int,
) -> None:
    """Run all stages of an experiment; runs in the ledger are not repeated."""
    for stage in experiment.stages:
        name = stage.__name__.replace("_", " ")
        run_missing(ledger, stage(ledger), execute, progress(name), workers=workers)
