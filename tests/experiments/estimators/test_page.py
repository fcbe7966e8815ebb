"""The page and the figure of the estimators."""

import math

import pytest

from experiments.estimators.figure import step_times_figure
from experiments.estimators.page import (
    Estimators,
    Timed,
    bias_rows,
    break_even_rows,
)
from tapas.errors import DataError

CLASSES = (10_000, 100_000, 1_000_000)
FULL = ("full", 0.01, 0.1, 1.0)


def times(name, *seconds):
    """Results of a head at each of `CLASSES`; a string is the reason for skipping."""
    by_size = dict(zip(CLASSES, seconds, strict=True))
    skipped = {n: s for n, s in by_size.items() if isinstance(s, str)}
    return Timed(name, {n: s for n, s in by_size.items() if n not in skipped}, skipped)


def all_of(*given, bias=()):
    return Estimators(tuple(times(*each) for each in given), tuple(bias))


def test_break_even_points():
    found = all_of(
        FULL,
        ("tapas", 0.1, 0.1, 0.1),
        ("nce", 0.001, 0.001, 0.001),
        ("warp", 3, 3, 3),
        ("sce", "no", "no", "no"),
    )
    assert found.break_even("tapas") == pytest.approx(100_000)
    assert found.break_even("nce") == 10_000
    assert found.break_even("warp") == math.inf
    assert found.break_even("sce") is found.break_even("full") is None
    assert all_of(("tapas", 1, 1, 1)).break_even("tapas") is None
    assert break_even_rows(all_of(FULL, ("warp", 3, 3, 3)))[-1][-1] == "above 1,000,000"


def test_a_method_that_cannot_be_built_has_a_reason_instead_of_a_bias():
    run = {"contender": "warp", "num_samples": 0}
    line = {"run": run, "skipped": "cannot be built", "aims_at_softmax": False}
    assert bias_rows(all_of(bias=[line])) == [["WARP", "–", "–", "–", "–", "cannot be built"]]


def words(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def note(figure):
    return " ".join(figure.texts[1].get_text().split())


def circles(figure):
    return [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for line in figure.axes[0].lines
        if line.get_linestyle() == "None"
    ]


def test_the_circle_where_full_softmax_becomes_slower():
    always, never = ("nce", 0.001, 0.001, 0.001), ("warp", 9, 9, 9)
    figure = step_times_figure(all_of(FULL, ("tapas", 0.1, 0.1, 0.1), always, never))
    assert circles(figure) == [pytest.approx((100_000, 0.1))]
    assert words(figure) == [
        "1 s  Full softmax", "100 ms  TAPAS, priority", "1 ms  NCE", "9 s  WARP"
    ]  # fmt: skip
    assert "Circles: from here on a step of the full softmax takes longer." in note(figure)
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"


def test_missing_measurements_are_listed():
    figure = step_times_figure(all_of(FULL, ("one-vs-all", 0.01, 0.1, "too slow")))
    assert "100 ms  One-vs-all (at 100,000)" in words(figure)
    assert "Not measured: One-vs-all at 1,000,000." in note(figure)
    assert "Circles" not in note(figure)


def test_nothing_to_draw_is_an_error():
    with pytest.raises(DataError, match=r"nothing to draw: no step times were measured\."):
        step_times_figure(all_of())
