"""Schedules: temperatures over the steps of a run."""

import dataclasses
import itertools
import math
import pickle

import pytest
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st

from tapas import Anneal
from tapas.schedule import Constant, Schedule, as_schedule

SHAPES = ["linear", "exponential", "cosine"]
positive = st.floats(1e-6, 1e6)


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
def test_annealing_moves_from_start_to_end_and_stays_there(start, end, steps, shape):
    """A linear start + (end - start) would end at 0, not at 1e-17, and divide scores by it."""
    schedule = Anneal(start=start, end=end, steps=steps, shape=shape)
    assert schedule(0) == start
    for step in (steps, steps + 1, 10 * steps):
        assert schedule(step) == pytest.approx(end, rel=1e-12)
        assert schedule(step) == schedule(steps)
    values = [schedule(step) for step in sorted({0, 1, steps // 3, steps // 2, steps - 1, steps})]
    sign = 1 if end >= start else -1
    for before, after in itertools.pairwise(values):
        assert sign * (after - before) >= -1e-12 * max(before, after)


def test_a_number_becomes_a_constant_and_a_schedule_is_returned_as_it_is():
    assert Anneal(start=3, end=1, steps=4)(1) == 2.5  # linear by default
    schedule = as_schedule(2)
    assert schedule == Constant(2)
    assert [schedule(0), schedule(10**9)] == [2.0, 2.0]
    assert isinstance(schedule(0), float)
    anneal = Anneal(start=2, end=1, steps=5)
    assert as_schedule(anneal) is anneal

    def halving(step: int) -> float:
        return 2.0**-step

    assert isinstance(halving, Schedule)
    assert as_schedule(halving) is halving


@pytest.mark.parametrize("schedule", [Constant(0.5), Anneal(start=2, end=1, steps=5)], ids=repr)
def test_schedules_are_values(schedule):
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(schedule, dataclasses.fields(schedule)[0].name, 3.0)


def test_bad_numbers_are_refused_in_these_words():
    for bad in (0, -1.5, math.nan, "hot", None):
        with raises_text(f"temperature must be between 1e-06 and 1e+06, got {bad!r}."):
            as_schedule(bad)
    good = {"start": 2, "end": 1, "steps": 5}
    with raises_text("temperature start must be between 1e-06 and 1e+06, got inf."):
        Anneal(**good | {"start": math.inf})
    with raises_text("temperature end must be between 1e-06 and 1e+06, got 0.0."):
        Anneal(**good | {"end": 0.0})
    with raises_text("temperature steps must be at least 1, got 0."):
        Anneal(**good | {"steps": 0})
    with raises_text("temperature steps must be an integer, got 1000.0."):
        Anneal(**good | {"steps": 1e3})
    with raises_text(
        "unknown annealing shape 'cosin'. Did you mean 'cosine'? "
        "Known: cosine, exponential, linear."
    ):
        Anneal(**good, shape="cosin")
