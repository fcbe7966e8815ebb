"""Confidence intervals of means: block bootstrap over users and seeds, Student's t over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapas.errors import UsageError

RESAMPLES = 2_000
Result = Mapping[str, Any]  # one line of a ledger, with metric sums for each block of users
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % confidence interval, which is infinite for a single value."""

    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def above_zero(self) -> bool:
        return self.low > 0

    @property
    def below_zero(self) -> bool:
        return self.high < 0

    def __str__(self) -> str:
        mean = f"{self.mean:.4f}"
        return f"{mean} ± {self.half_width:.4f}" if math.isfinite(self.half_width) else mean

    def format(self, digits: int = 4, *, sign: bool = False) -> str:
        """For example "0.0123 (0.0098 to 0.0148)"; the mean alone if the interval is infinite."""
        form = f"{'+' if sign else ''}.{digits}f"
        if not math.isfinite(self.high - self.low):
            return f"{self.mean:{form}}"
        return f"{self.mean:{form}} ({self.low:{form}} to {self.high:{form}})"

    def plus_minus(self, digits: int = 4, *, sign: bool = False) -> str:
        """For example "0.0123 ±0.0025": the distance to the farther end of the interval.

        The mean alone if the interval is infinite.
        """
        distance = max(self.high - self.mean, self.mean - self.low)
        mean = f"{self.mean:{'+' if sign else ''}.{digits}f}"
        return f"{mean} ±{distance:.{digits}f}" if math.isfinite(distance) else mean

    def format_percent(self) -> str:
        """For example "+1.2 % (-0.4 to +2.8)"."""
        return f"{100 * self.mean:+.1f} % ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


def block_bootstrap(results: Sequence[Result], metric: str) -> Interval:
    """Interval of the mean of `metric` over the runs in `results`, one run for each seed.

    Seeds and blocks of users are resampled; `metric` is "map@20" or "loss".
    """
    return _percentile_interval(_resampled([results], metric)[0])


def difference(ours: Sequence[Result], theirs: Sequence[Result], metric: str) -> Interval:
    """Interval of ours - theirs, paired by seed; raises `UsageError` without a common seed."""
    a, b = _resampled(_paired(ours, theirs), metric)
    return _percentile_interval(a - b)


def relative_difference(ours: Sequence[Result], theirs: Sequence[Result], metric: str) -> Interval:
    """Interval of ours / theirs - 1, paired by seed."""
    a, b = _resampled(_paired(ours, theirs), metric)
    return _percentile_interval(a / b - 1)


def share_of_gap(
    low: Sequence[Result], ours: Sequence[Result], high: Sequence[Result], metric: str
) -> Interval | None:
    """Share of the gap from `low` to `high` that `ours` closes: (ours - low) / (high - low).

    None if the gap itself is not significantly above 0.
    """
    a, b, c = _resampled(_paired(low, ours, high), metric)
    if not _percentile_interval(c - a).above_zero:
        return None
    return _percentile_interval((b - a) / (c - a))


def _paired(*groups: Sequence[Result]) -> list[list[Result]]:
    """The results of the seeds that all groups share, in the same order."""
    by_seed = [{result["run"]["seed"]: result for result in group} for group in groups]
    common = sorted(set.intersection(*(set(group) for group in by_seed)))
    if not common:
        raise UsageError("these methods have no seed in common: there is nothing to compare.")
    return [[group[seed] for seed in common] for group in by_seed]


def _resampled(groups: Sequence[Sequence[Result]], metric: str) -> list[Floats]:
    """For each group its mean, followed by the means of 2,000 resamples: (2001,) each."""
    draw = np.random.default_rng(0)
    points = np.array(groups[0][0]["blocks"]["points"])
    num_seeds, num_blocks = len(groups[0]), len(points)
    seeds = draw.integers(num_seeds, size=(RESAMPLES, num_seeds))
    blocks = draw.integers(num_blocks, size=(RESAMPLES, num_blocks))
    times = np.stack([(blocks == b).sum(axis=1) for b in range(num_blocks)], axis=1)
    found = []
    for group in groups:
        if any(result["blocks"]["points"] != points.tolist() for result in group):
            raise UsageError(
                "these results were evaluated at different points and cannot be compared."
            )
        sums = np.array([result["blocks"][metric] for result in group])  # (seeds, blocks)
        mean = sums.mean(axis=0).sum() / points.sum()
        resampled = (sums[seeds].mean(axis=1) * times).sum(axis=1) / (times @ points)
        found.append(np.append(mean, resampled))
    return found


def _percentile_interval(values: Floats) -> Interval:
    """Interval of the mean values[0] from its resamples values[1:]."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return Interval(float(values[0]), float(low), float(high))


# two-sided 95 % quantiles of Student's t for 1 .. 9 degrees of freedom
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def student_interval(values: Sequence[float]) -> Interval:
    """Student's 95 % interval of the mean of `values`; infinite for a single value."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    student = STUDENT[min(len(values) - 2, len(STUDENT) - 1)]
    half_width = student * math.sqrt(variance / len(values))
    return Interval(mean, mean - half_width, mean + half_width)


def student_difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Student's interval of ours - theirs, paired: value i of both must have the same seed."""
    return student_interval([a - b for a, b in zip(ours, theirs, strict=True)])
