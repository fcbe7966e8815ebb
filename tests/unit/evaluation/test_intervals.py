"""Means and differences against plain loops, and the coverage of the intervals."""

import math
import re
from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats

from tapas.errors import UsageError
from tapas.evaluation import intervals
from tapas.evaluation.intervals import (
    STUDENT,
    Interval,
    block_bootstrap,
    difference,
    relative_difference,
    share_of_gap,
    student_difference,
    student_interval,
)
from tapas.evaluation.points import NUM_BLOCKS, block_sums

POINTS = [3.0, 1.0, 0.0, 7.0, 2.0, 5.0, 4.0]


def a_result(seed, *, points=POINTS, scale=1.0, shift=0.0, noise=0):
    draw = np.random.default_rng([seed, noise])
    value = (scale * draw.random(len(points)) + shift) * np.array(points)
    return {
        "run": {"seed": seed},
        "blocks": {"points": points, "map@20": value.tolist(), "loss": (7 * value).tolist()},
    }


def seeds(*which, **options):
    return [a_result(seed, **options) for seed in which]


def slow_means(results, metric):
    """The mean and the means of all resamples, computed one block at a time."""
    draw = np.random.default_rng(0)
    num_seeds, num_blocks = len(results), len(POINTS)
    chosen_seeds = draw.integers(num_seeds, size=(intervals.RESAMPLES, num_seeds))
    chosen_blocks = draw.integers(num_blocks, size=(intervals.RESAMPLES, num_blocks))

    def mean(which, where):
        total = size = 0.0
        for seed in which:
            for block in where:
                total += results[seed]["blocks"][metric][block]
                size += POINTS[block]
        return total / size

    overall = mean(range(num_seeds), range(num_blocks))
    pairs = zip(chosen_seeds, chosen_blocks, strict=True)
    return overall, np.array([mean(s, b) for s, b in pairs])


def close(found, value, resampled):
    low, high = np.quantile(resampled, [0.025, 0.975])
    np.testing.assert_allclose(astuple(found), (value, low, high), rtol=1e-12)


@pytest.mark.parametrize("metric", ["map@20", "loss"])
@pytest.mark.parametrize("num_seeds", [1, 3])
def test_means_and_differences_equal_those_of_loops_on_the_same_resamples(
    metric, num_seeds, monkeypatch
):
    monkeypatch.setattr(intervals, "RESAMPLES", 200)
    which = range(num_seeds)
    ours, theirs, high = (
        seeds(*which),
        seeds(*which, scale=0.5, noise=9),
        seeds(*which, shift=3.0, noise=4),
    )
    (a, a_again), (b, b_again), (c, c_again) = (
        slow_means(results, metric) for results in (ours, theirs, high)
    )
    close(block_bootstrap(ours, metric), a, a_again)
    close(difference(ours, theirs, metric), a - b, a_again - b_again)
    close(relative_difference(ours, theirs, metric), a / b - 1, a_again / b_again - 1)
    share = (a_again - b_again) / (c_again - b_again)
    close(share_of_gap(theirs, ours, high, metric), (a - b) / (c - b), share)


def test_seeds_are_paired_in_any_order():
    """The difference is the same everywhere: paired, its interval has no width."""
    ours, theirs = seeds(2, 0, 1, shift=0.25), seeds(0, 3, 1, 2)
    np.testing.assert_allclose(astuple(difference(ours, theirs, "map@20")), [0.25] * 3, rtol=1e-12)
    doubled = [
        {**r, "blocks": {**r["blocks"], "map@20": [2 * v for v in r["blocks"]["map@20"]]}}
        for r in seeds(1, 0)
    ]
    relative = relative_difference(doubled, theirs, "map@20")
    np.testing.assert_allclose(astuple(relative), [1.0] * 3, rtol=1e-12)
    alone = difference(seeds(1, shift=0.5), seeds(0, 1), "map@20")  # one seed in common
    np.testing.assert_allclose(astuple(alone), [0.5] * 3, rtol=1e-12)


def test_results_of_other_points_or_seeds_cannot_be_compared():
    other = [1.0, *POINTS[1:]]
    for compare in (
        lambda: difference(seeds(0, 1), seeds(0, 1, points=other), "loss"),
        lambda: share_of_gap(seeds(0), seeds(0), seeds(0, points=other), "loss"),
        lambda: block_bootstrap([a_result(0), a_result(1, points=other)], "loss"),
    ):
        with pytest.raises(UsageError) as error:
            compare()
        assert (
            str(error.value)
            == "these results were evaluated at different points and cannot be compared."
        )
    words = "these methods have no seed in common: there is nothing to compare."
    with pytest.raises(UsageError, match=f"^{re.escape(words)}$"):
        difference(seeds(0, 1), seeds(2, 3), "loss")


def test_an_interval_is_formatted_and_knows_its_side_of_zero():
    found = Interval(0.01234, -0.5, 0.75)
    assert str(Interval(0.25, 0.2, 0.3)) == "0.2500 ± 0.0500"
    assert found.format() == "0.0123 (-0.5000 to 0.7500)"
    assert found.format(2, sign=True) == "+0.01 (-0.50 to +0.75)"
    assert found.format_percent() == "+1.2 % (-50.0 to +75.0)"
    assert (found.above_zero, found.below_zero) == (False, False)
    assert Interval(1, 0.5, 2).above_zero
    assert Interval(-1, -2, -0.5).below_zero
    assert not Interval(0, 0.0, 0.0).above_zero
    assert not Interval(0, 0.0, 0.0).below_zero


USERS, EACH, TRIALS = 400, 8, 300


def coverage():
    """Share of simulated experiments whose interval contains the true mean, 1.

    Users have standard deviation 1, the points of a user 0.5.
    """
    draw = np.random.default_rng(0)
    user = np.repeat(np.arange(USERS), EACH)
    held = 0
    for _ in range(TRIALS):
        value = 1 + draw.normal(size=USERS)[user] + 0.5 * draw.normal(size=len(user))
        blocks = {
            "points": block_sums(np.ones(len(user)), user),
            "loss": block_sums(value, user),
        }
        found = block_bootstrap([{"run": {"seed": 0}, "blocks": blocks}], "loss")
        held += found.low <= 1 <= found.high
    return held / TRIALS


def test_95_percent_intervals_cover_the_truth_although_points_of_a_user_are_correlated(monkeypatch):
    """With 50 blocks the coverage is 94 %, with 300 resamples 93.5 %.

    The standard error over 300 trials is 1.4 %: more than 4 of them in 1 of 16,000 seeds.
    """
    monkeypatch.setattr(intervals, "RESAMPLES", 300)
    assert USERS % NUM_BLOCKS == 0
    error = (0.935 * 0.065 / TRIALS) ** 0.5
    assert abs(coverage() - 0.935) < 4 * error


def test_the_interval_over_seeds_is_students():
    values = [0.31, 0.29, 0.35, 0.30, 0.33]
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    found = student_interval(values)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-4)
    assert student_interval([0.5]).half_width == math.inf  # one value has no variance
    paired = student_difference([1.0, 2.0, 4.0], [0.5, 1.5, 3.5])
    assert (paired.mean, paired.half_width) == (0.5, 0)
    for degrees, value in enumerate(STUDENT, start=1):
        assert abs(stats.t.isf(0.025, degrees) - value) < 5e-4
