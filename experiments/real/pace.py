"""Table 1: how many steps a second every cell takes, and how many rows it touches.

All cells are built, then measured in turns, round after round, so that a machine that slows
down slows all of them; ratios are taken inside a round.
"""

import statistics
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch

from experiments.real.cells import PAPER_CELLS, SAMPLED, SAMPLED_2, SAMPLED_4, SetCell, SetRuns
from experiments.real.runs import build_run, open_set
from experiments.real.sets import Place
from tapas.comparison.ledger import Ledger
from tapas.training.build import TrainingSetup
from tapas.training.step import step

ROUNDS = 5
SECONDS = 1.0  # of steps, for each cell and round
MEASURED = (*PAPER_CELLS, SAMPLED_2, SAMPLED_4)


class Rows(NamedTuple):
    """Class rows of one step."""

    scored: int  # read by the second pass, on the shard that stores them
    in_loss: int  # read, moved and updated: targets and kept classes


@dataclass(frozen=True, slots=True)
class Pace:
    """One cell of one set."""

    cell: SetCell
    steps_per_second: list[float]  # one for each round
    against_sampled: list[float]  # seconds of a step, relative to sampled softmax with n
    rows: Rows

    @property
    def cost(self) -> float:
        """How many steps of sampled softmax with n take as long as one of these."""
        return statistics.median(self.against_sampled)


def measure_pace(
    set_runs: SetRuns, ledger: Ledger, place: Place, *, rounds: int = ROUNDS
) -> list[Pace]:
    """Every cell of `set_runs`, with the settings that its search found."""
    runs = {cell: set_runs.run(cell, *set_runs.best(ledger, cell), seed=0) for cell in MEASURED}
    log, split = open_set(set_runs.real_set, place)
    built = {cell: build_run(run, place, log, split) for cell, run in runs.items()}
    rows = {cell: count_rows(parts) for cell, parts in built.items()}
    seconds: dict[SetCell, list[float]] = {cell: [] for cell in MEASURED}
    done = dict.fromkeys(MEASURED, 0)
    for _ in range(rounds):
        for cell, parts in built.items():
            budget = 0.1 if set_runs.is_quick else SECONDS
            taken, done[cell] = _seconds_of_a_step(parts, budget, done[cell])
            seconds[cell].append(taken)
    base = seconds[SAMPLED]
    return [
        Pace(
            cell,
            [round(1 / s, 2) for s in seconds[cell]],
            [round(s / b, 3) for s, b in zip(seconds[cell], base, strict=True)],
            rows[cell],
        )
        for cell in MEASURED
    ]


def _seconds_of_a_step(parts: TrainingSetup, budget: float, number: int) -> tuple[float, int]:
    """Median over as many steps as fit into `budget` seconds, the first three left out.

    Starts with step `number`, and also returns the number of the next step.
    """
    taken: list[float] = []
    while len(taken) < 6 or sum(taken) < budget:
        start = time.perf_counter()
        batch = parts.windows.batch(number)
        step(parts.model, parts.optimizer, batch, seed=0, number=number, clip=1.0)
        taken.append(time.perf_counter() - start)
        number += 1
    return statistics.median(taken[3:]), number


@torch.no_grad()
def count_rows(parts: TrainingSetup) -> Rows:
    """Distinct class rows of one batch."""
    head, batch = parts.model.tapas_head, parts.windows.batch(0)
    states = parts.model.states(batch.items, batch.lengths)
    query = states.view(-1, states.shape[2])[batch.query_index]
    kept = head.sample(query, batch.target).ids
    in_loss = torch.unique(torch.cat([kept, batch.target[batch.target >= 0]]))
    n, r = head.num_samples, head.presample_factor
    return Rows(min(n * r, head.num_classes) if r > 1 else 0, len(in_loss))
