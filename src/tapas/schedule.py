"""Schedules: numbers that depend on the step, such as the temperature of the second pass.

linear        start + (end - start) * x             x = min(step / steps, 1)
exponential   start * (end / start) ** x
cosine        end + (start - end) * (1 + cos(pi x)) / 2
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tapas.errors import UsageError, choice
from tapas.shapes import check_positive, number


@runtime_checkable
class Schedule(Protocol):
    """A callable that maps a step (0, 1, ...) to a positive number."""

    def __call__(self, step: int) -> float: ...


def check_temperature(name: str, value: float) -> None:
    """Raise UsageError unless `value` is between 1e-6 and 1e6: scores must stay finite."""
    if not 1e-6 <= number(value) <= 1e6:
        raise UsageError(f"{name} must be between 1e-06 and 1e+06, got {value!r}.")


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value at every step."""

    value: float

    def __post_init__(self) -> None:
        check_temperature("temperature", self.value)

    def __call__(self, step: int) -> float:
        return float(self.value)


def _linear(start: float, end: float, x: float) -> float:
    return start * (1 - x) + end * x  # exact at both ends: never rounds down to 0


_SHAPES: dict[str, Callable[[float, float, float], float]] = {
    "linear": _linear,
    "exponential": lambda start, end, x: start * (end / start) ** x,
    "cosine": lambda start, end, x: _linear(end, start, (1 + math.cos(math.pi * x)) / 2),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Anneal:
    """Moves from `start` to `end` over `steps` steps, then stays at `end`."""

    start: float
    end: float
    steps: int
    shape: str = "linear"  # "linear", "exponential" or "cosine"

    def __post_init__(self) -> None:
        check_temperature("temperature start", self.start)
        check_temperature("temperature end", self.end)
        check_positive("temperature steps", self.steps)
        choice("annealing shape", self.shape, _SHAPES)

    def __call__(self, step: int) -> float:
        return float(_SHAPES[self.shape](self.start, self.end, min(step / self.steps, 1.0)))


def as_schedule(value: float | Schedule) -> Schedule:
    """Return a schedule as it is, and a number as a `Constant`."""
    if isinstance(value, type) or not isinstance(value, Schedule):
        return Constant(value)  # type: ignore[arg-type]
    return value
