"""Reference proposals: the probability of every class, and one draw at a time."""

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
    """The first `k` distinct classes of `draws`, sorted, and their inclusion probabilities.

    Drawing ends with the first class that is not among them. Class c could have come instead of
    each draw of another class until then.
    """
    times: dict[int, int] = {}
    for tries, drawn in enumerate(draws, start=1):
        if drawn not in times and len(times) == k:
            kept = sorted(times)
            return kept, [1 - (1 - prob[c]) ** (tries - times[c]) for c in kept]
        times[drawn] = times.get(drawn, 0) + 1
    raise AssertionError(f"draws ended after {len(times)} of {k} distinct classes")


def alias_distribution(threshold: Array, partner: NDArray[np.int64]) -> Array:
    """Distribution of an alias table: bucket c yields c below its threshold, else its partner."""
    drawn = threshold.copy()
    np.add.at(drawn, partner, 1 - threshold)
    return drawn / len(threshold)


def p_value(observed: NDArray[np.int64], prob: Array) -> float:
    """Chi-square p-value of the counts `observed` under `prob`; rare classes are pooled."""
    expected = prob / prob.sum() * observed.sum()
    rare = expected < 20
    if rare.any() and not rare.all():
        rare |= expected == expected[~rare].min()  # so that the pool is not rare itself
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    return float(stats.chisquare(observed, expected).pvalue)
