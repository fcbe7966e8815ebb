"""Measures the pace of every contender, its time for a step, before anything else runs.

A step is: make the batch, loss, backward, update of rows and encoder, on one thread. Contenders
take turns, round after round, so that a machine that slows down slows all of them. Each is
built for its turn, so that only one is in memory. The pace is the median over rounds of the mean
step, since some methods do part of their work only in some steps.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tapas.comparison.config import CompareConfig
from tapas.comparison.contenders import by_name
from tapas.comparison.ledger import Ledger
from tapas.comparison.runs import CompareRun, OpenedLog, build_run, known_scores, open_log
from tapas.errors import UsageError
from tapas.peak_memory import forget_peak, peak_bytes
from tapas.training.step import step
from tapas.training.time_budget import WARM_UP, mean_step

SHORTEST, LONGEST = 1e-7, 1e6  # seconds that a step can take


@dataclass(frozen=True, slots=True)
class PaceRun:
    """The pace of one contender."""

    contender: str
    num_samples: int

    def key(self) -> str:
        return f"pace of {self.contender}"


def pace_runs(config: CompareConfig, num_samples: int) -> list[PaceRun]:
    return [PaceRun(contender.name, num_samples) for contender in by_name(config.contenders)]


def measure_paces(
    ledger: Ledger,
    runs: Sequence[PaceRun],
    config: CompareConfig,
    cache: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Measure what the ledger lacks. A contender that cannot be built is recorded as skipped."""
    todo = ledger.missing(runs)
    if not todo:
        return
    torch.set_num_threads(1)
    opened = open_log(config, cache)
    found: dict[str, dict[str, Any]] = {run.key(): {"step_seconds": []} for run in todo}
    progress(0, config.pace_rounds * len(todo))
    for turn in range(config.pace_rounds):
        for place, run in enumerate(todo):
            mine = found[run.key()]
            if "skipped" not in mine:
                _take_turn(run, turn, mine, config, opened)
            progress(turn * len(todo) + place + 1, config.pace_rounds * len(todo))
    for run in todo:
        ledger.add({"key": run.key(), "run": asdict(run), **found[run.key()]})


def _take_turn(
    run: PaceRun, turn: int, found: dict[str, Any], config: CompareConfig, opened: OpenedLog
) -> None:
    """Measure one mean step and add it to `found`."""
    first = by_name([run.contender])[0].trials(1)[0]
    training = CompareRun(
        contender=run.contender,
        rows_lr=first.rows_lr,
        knob=first.knob,
        num_samples=run.num_samples,
        steps=1_000,
        seed=turn,
    )
    forget_peak()
    try:
        parts = build_run(training, config, opened)
    except (
        UsageError
    ) as refusal:  # for example too large for this machine: continue with the others
        found |= {"skipped": str(refusal)}
        return

    def take(number: int) -> float:
        start = time.perf_counter()
        batch = parts.windows.batch(number)
        clip = parts.config.optimizer.clip
        step(parts.model, parts.optimizer, batch, seed=turn, number=number, clip=clip)
        return time.perf_counter() - start

    contender = by_name([run.contender])[0]
    warm_up = config.settling_steps if contender.kind.learns_state else WARM_UP
    found["step_seconds"].append(round(mean_step(take, config.pace_seconds, warm_up), 7))
    found["peak_bytes"] = peak_bytes()
    found["scores_per_example"] = known_scores(parts.model.head)


def paces(ledger: Ledger, runs: Sequence[PaceRun]) -> dict[str, float]:
    """Seconds per step of each contender that could be built."""
    return {
        run.contender: _pace(ledger, run)
        for run in runs
        if run in ledger and "skipped" not in ledger[run]
    }


def _pace(ledger: Ledger, run: PaceRun) -> float:
    found = ledger[run]
    rounds = found.get("step_seconds")
    if not isinstance(rounds, list) or not rounds or not all(map(_is_time_of_step, rounds)):
        raise ledger.damaged(run.key(), "step_seconds are no times of steps")
    if found["run"].get("contender") != run.contender:
        raise ledger.damaged(run.key(), "its key is that of another run")
    return float(statistics.median(rounds))


def _is_time_of_step(value: object) -> bool:
    return isinstance(value, int | float) and SHORTEST <= value <= LONGEST
