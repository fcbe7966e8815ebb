"""First passes the slow way: one probability for every class, one draw at a time."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]


def squashed(counts: Sequence[float], alpha: float, beta: float | None = None) -> Array:
    """p ∝ max(f^alpha, beta), with 0^0 = 1."""
    total = sum(counts)
    floor = (1 / total) ** alpha if beta is None else beta
    weights = [max((c / total) ** alpha, floor) if c > 0 or alpha == 0 else floor for c in counts]
    return np.array(weights) / math.fsum(weights)


def log_uniform(num_classes: int) -> Array:
    gaps = [math.log((c + 2) / (c + 1)) for c in range(num_classes)]
    return np.array(gaps) / math.log(num_classes + 1)


def mixture(parts: Sequence[Array], weights: Sequence[float]) -> Array:
    return sum(w * p for w, p in zip(weights, parts, strict=True)) / sum(weights)


def bigram(
    pairs: Iterable[tuple[int, int, float]], contexts: Sequence[int], unigram: Array, kappa: float
) -> Array:
    """Mean over the batch of (n(x, y) + kappa U(y)) / (n(x) + kappa)."""
    pairs = list(pairs)
    mean = np.zeros(len(unigram))
    for context in contexts:
        row = kappa * unigram
        for previous, following, count in pairs:
            if previous == context:
                row[following] += count
        mean += row / row.sum() / len(contexts)
    return mean


def draw_until_distinct(
    draws: Iterable[int], k: int, prob: Array | dict[int, float]
) -> tuple[list[int], list[float]]:
    """The first `k` distinct of `draws`, rising, and the chance each had to be among them.

    The class after them ends the drawing. Until then every draw of another class was an
    occasion on which class c could have come in its place.
    """
    times: dict[int, int] = {}
    for tries, drawn in enumerate(draws, start=1):
        if drawn not in times and len(times) == k:
            kept = sorted(times)
            return kept, [1 - (1 - prob[c]) ** (tries - times[c]) for c in kept]
        times[drawn] = times.get(drawn, 0) + 1
    raise AssertionError(f"the script of draws ended with {len(times)} distinct classes of {k}")


def alias_distribution(threshold: Array, partner: NDArray[np.int64]) -> Array:
    """A bucket is drawn as itself up to its threshold, as its partner for the rest."""
    drawn = threshold.copy()
    np.add.at(drawn, partner, 1 - threshold)
    return drawn / len(threshold)


def chance_of(observed: NDArray[np.int64], prob: Array) -> float:
    """p-value of draws counted as `observed` under `prob`; cells expecting few are pooled."""
    expected = prob / prob.sum() * observed.sum()
    rare = expected < 20
    if rare.any() and not rare.all():
        rare |= expected == expected[~rare].min()  # the pool itself must expect enough
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    return float(stats.chisquare(observed, expected).pvalue)
