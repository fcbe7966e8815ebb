"""As many steps as fit into a given time, by the pace of this machine.

    steps = (seconds left - evaluations * seconds of one) / seconds of a step

The pace is measured with a model of its own, before the run begins; the number of steps is then
fixed, and so is the schedule of the learning rates.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tapas.errors import UsageError
from tapas.tables.ranks import Ranks
from tapas.training.build import EVALUATIONS, TrainingSetup
from tapas.training.config import TrainConfig
from tapas.training.model import SequenceModel
from tapas.training.step import local_steps

WARM_UP = 3  # steps that are not counted
LEAST = 3  # steps that are
PATIENCE = 4  # times the seconds that pace may take; of a slow model fewer steps are counted
PACE_SHARE, MOST_PACE_SECONDS = 0.02, 5.0  # of the time is spent on measuring
EVALUATION_SHARE = 0.15  # at most, on evaluations
MOST_EPOCHS = 30  # more only learn the log by heart


class TooShortError(UsageError):
    """The time is too short for an evaluation and a few steps."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a step and an evaluation take."""

    step_seconds: float
    evaluation_seconds: float


def measure_pace(
    setup: TrainingSetup,
    validate: Callable[[SequenceModel], dict[str, float]],
    seconds: float,
    ranks: Ranks,
) -> Pace:
    """The pace of `setup`, whose model is used up, in a small share of `seconds`."""
    steps = local_steps(setup, ranks)

    def take(number: int) -> float:
        start = time.perf_counter()
        steps.run_step(number, number + 1)
        return _agreed(time.perf_counter() - start, ranks)

    step_seconds = mean_step(take, min(PACE_SHARE * seconds, MOST_PACE_SECONDS))
    begin = time.perf_counter()
    validate(setup.model)
    return Pace(step_seconds, _agreed(time.perf_counter() - begin, ranks))


def fit_to_time(
    setup: TrainingSetup,
    validate: Callable[[SequenceModel], dict[str, float]],
    seconds: float,
    ranks: Ranks,
    *,
    started: float,
) -> tuple[TrainConfig, str]:
    """The configuration with the steps that fit into `seconds`, and a sentence about them.

    `started` is when the time began, by `time.monotonic`. The model of `setup` is used up. Raises
    TooShortError if the time is too short for an evaluation and as many steps as there are between
    two.
    """
    config, pace = setup.config, measure_pace(setup, validate, seconds, ranks)
    step_seconds, evaluation_seconds = pace.step_seconds, pace.evaluation_seconds
    left = seconds - _agreed(time.monotonic() - started, ranks)
    times = int(EVALUATION_SHARE * left / evaluation_seconds)
    times = max(1, min(EVALUATIONS, times))
    num_steps = int((left - times * evaluation_seconds) / step_seconds)
    if num_steps < EVALUATIONS:
        least = seconds - left + evaluation_seconds + EVALUATIONS * step_seconds
        raise TooShortError(
            f"--minutes {seconds / 60:.3g} is too short: a step takes {step_seconds:.2g} s and an "
            f"evaluation {evaluation_seconds:.2g} s. Give it at least {1.3 * least / 60:.2g} "
            "minutes, or choose a smaller model."
        )
    num_steps = min(num_steps, MOST_EPOCHS * setup.windows.steps_per_epoch)
    epochs = num_steps / setup.windows.steps_per_epoch
    every = -(-num_steps // times)
    loop = replace(config.loop, steps=num_steps, evaluate_every=every, patience=times)
    words = (
        f"{seconds / 60:.3g} minutes: {num_steps:,} steps of {step_seconds:.2g} s, "
        f"{epochs:.3g} epochs, and {times} evaluation{'s' if times > 1 else ''} of "
        f"{evaluation_seconds:.2g} s."
    )
    return replace(config, loop=loop), words


def mean_step(take: Callable[[int], float], seconds: float, warm_up: int = WARM_UP) -> float:
    """Mean time of the steps that fit into `seconds`, after a warm-up; `take(i)` runs step i.

    At least 3 steps are counted, unless they take more than 4 times `seconds`.
    """
    warm = 0.0
    for number in range(warm_up):
        warm += take(number)
        if warm > PATIENCE * seconds:
            break
    taken: list[float] = []
    while sum(taken) < seconds or len(taken) < LEAST:
        taken.append(take(number + 1 + len(taken)))
        if sum(taken) > PATIENCE * seconds:
            break
    return statistics.fmean(taken)


def _agreed(value: float, ranks: Ranks) -> float:
    """The mean of `value` over ranks, so that all plan the same."""
    return value if not ranks.is_distributed else float(ranks.sum_numbers(value)[0]) / ranks.size
