"""Means over seeds with their intervals, and differences of runs that share a seed."""

import math
from collections.abc import Sequence
from typing import NamedTuple

# two-sided 95 % points of Student's t for 1 .. 9 degrees of freedom
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Interval(NamedTuple):
    """A mean and the half width of its 95 % interval."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.half:.4f}"


def interval(values: Sequence[float]) -> Interval:
    """Student's 95 % interval of the mean; infinitely wide for a single value."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, math.inf)
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    student = STUDENT[min(len(values) - 2, len(STUDENT) - 1)]
    return Interval(mean, student * math.sqrt(variance / len(values)))


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Interval of ours - theirs, seed by seed: both saw the same batches and started alike."""
    return interval([a - b for a, b in zip(ours, theirs, strict=True)])


def moving_average(values: Sequence[float], width: int) -> list[float]:
    """Centred mean of up to `width` neighbours; narrower at both ends."""
    half = width // 2
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]
