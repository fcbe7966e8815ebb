import dataclasses
import itertools
import math
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapas import Anneal, UsageError
from tapas.schedule import Constant, Schedule, as_schedule

SHAPES = ["linear", "exponential", "cosine"]
positive = st.floats(1e-30, 1e30)


@pytest.mark.parametrize(
    ("shape", "want"),
    [
        ("linear", [8, 6.5, 5, 3.5, 2]),
        ("exponential", [8, 8 / 2**0.5, 4, 4 / 2**0.5, 2]),
        ("cosine", [8, 5 + 3 * 0.5**0.5, 5, 5 - 3 * 0.5**0.5, 2]),
    ],
)
def test_each_shape_follows_its_equation(shape, want):
    schedule = Anneal(start=8, end=2, steps=4, shape=shape)
    assert [schedule(step) for step in range(5)] == pytest.approx(want, rel=1e-12)


@given(positive, positive, st.integers(1, 10**9), st.sampled_from(SHAPES))
def test_annealing_starts_at_start_and_stays_at_end_for_ever(start, end, steps, shape):
    """A linear start + (end - start) would end at 0, not at 1e-17, and divide scores by it."""
    schedule = Anneal(start=start, end=end, steps=steps, shape=shape)
    assert schedule(0) == start
    for step in (steps, steps + 1, 10 * steps):
        assert schedule(step) == pytest.approx(end, rel=1e-12)
        assert schedule(step) == schedule(steps)


@given(positive, positive, st.integers(1, 1000), st.sampled_from(SHAPES))
def test_annealing_is_monotone_and_never_leaves_start_to_end(start, end, steps, shape):
    schedule = Anneal(start=start, end=end, steps=steps, shape=shape)
    values = [schedule(step) for step in sorted({0, 1, steps // 3, steps // 2, steps - 1, steps})]
    sign = 1 if end >= start else -1
    for before, after in itertools.pairwise(values):
        assert sign * (after - before) >= -1e-12 * max(before, after)
    low, high = min(start, end), max(start, end)
    assert all(low * (1 - 1e-12) <= value <= high * (1 + 1e-12) for value in values)


def test_linear_is_what_one_gets_without_asking():
    assert Anneal(start=3, end=1, steps=4)(1) == 2.5


def test_a_constant_is_the_same_float_at_every_step():
    schedule = Constant(2)
    assert [schedule(0), schedule(10**9)] == [2.0, 2.0]
    assert isinstance(schedule(0), float)


def test_a_number_becomes_constant_and_a_schedule_stays_itself():
    anneal = Anneal(start=2, end=1, steps=5)
    assert as_schedule(0.5) == Constant(0.5)
    assert as_schedule(anneal) is anneal


def test_any_function_of_the_step_is_a_schedule():
    def halving(step: int) -> float:
        return 2.0**-step

    assert isinstance(halving, Schedule)
    assert as_schedule(halving) is halving


@pytest.mark.parametrize("schedule", [Constant(0.5), Anneal(start=2, end=1, steps=5)], ids=repr)
def test_schedules_are_values(schedule):
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(schedule, dataclasses.fields(schedule)[0].name, 3.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Constant(0), "temperature must be a finite number above 0, got 0."),
        (lambda: Constant(-1.5), "temperature must be a finite number above 0, got -1.5."),
        (lambda: Constant(math.nan), "temperature must be a finite number above 0, got nan."),
        (lambda: as_schedule("hot"), "temperature must be a finite number above 0, got 'hot'."),
        (lambda: as_schedule(None), "temperature must be a finite number above 0, got None."),
        (
            lambda: Anneal(start=math.inf, end=1, steps=5),
            "temperature start must be a finite number above 0, got inf.",
        ),
        (
            lambda: Anneal(start=1, end=0.0, steps=5),
            "temperature end must be a finite number above 0, got 0.0.",
        ),
        (lambda: Anneal(start=2, end=1, steps=0), "temperature steps must be at least 1, got 0."),
        (
            lambda: Anneal(start=2, end=1, steps=1e3),
            "temperature steps must be a whole number, got 1000.0.",
        ),
        (
            lambda: Anneal(start=2, end=1, steps=5, shape="cosin"),
            "unknown annealing shape 'cosin'. Did you mean 'cosine'? "
            "Known: cosine, exponential, linear.",
        ),
    ],
)
def test_bad_numbers_are_refused_in_these_words(call, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        call()
