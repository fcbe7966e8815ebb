"""Intervals over seeds."""

import math

import numpy as np
from scipy import stats

from tapas.evaluation.intervals import STUDENT, difference, interval, moving_average


def test_the_interval_is_students():
    values = [0.31, 0.29, 0.35, 0.30, 0.33]
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    found = interval(values)
    assert math.isclose(found.low, low, rel_tol=1e-4)
    assert math.isclose(found.high, high, rel_tol=1e-4)


def test_the_table_of_student_is_right():
    for degrees, value in enumerate(STUDENT, start=1):
        assert abs(stats.t.isf(0.025, degrees) - value) < 5e-4


def test_one_value_says_nothing_about_its_spread():
    assert interval([0.5]).half == math.inf


def test_differences_are_taken_seed_by_seed():
    found = difference([1.0, 2.0, 4.0], [0.5, 1.5, 3.5])
    assert found.mean == 0.5
    assert found.half == 0


def test_a_moving_average_is_centred_and_narrows_at_the_ends():
    assert moving_average([1.0, 2.0, 6.0, 3.0], 3) == [1.5, 3.0, 11 / 3, 4.5]
    assert moving_average([1.0, 2.0], 1) == [1.0, 2.0]
