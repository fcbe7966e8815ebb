"""The page and the figure of the estimators: nothing is left out, nothing is invented."""

import math

import numpy as np
import pytest

from experiments.estimators.figure import step_times_figure
from experiments.estimators.page import (
    Estimators,
    Timed,
    bias_rows,
    break_even_heading,
    break_even_rows,
    timed,
)
from tapas.errors import DataError

CLASSES = (10_000, 100_000, 1_000_000)
FULL = ("full", 0.01, 0.1, 1.0)


def times(name, *seconds):
    """Of a head with the numbers of `CLASSES`; words for what was skipped."""
    by_size = dict(zip(CLASSES, seconds, strict=True))
    skipped = {n: s for n, s in by_size.items() if isinstance(s, str)}
    return Timed(name, {n: s for n, s in by_size.items() if n not in skipped}, skipped)


def line(name, num_samples=16, **found):
    return {"key": name, "run": {"contender": name, "num_samples": num_samples}, **found}


def pull(*means):
    names = ("head", "middle", "tail")
    return {n: {"mean": m, "standard_error": 0.01} for n, m in zip(names, means, strict=True)}


def all_of(*given, bias=()):
    return Estimators(tuple(times(*each) for each in given), tuple(bias))


WHOLE = all_of(
    FULL,
    ("tapas", 0.03, 0.03, 0.03),
    ("nce", 0.001, 0.001, "too much memory"),
    bias=(
        line("tapas", bias=0.25, noise=0.125, pull=pull(0.1, -0.015, -0.1), aims_at_softmax=True),
        line("nce", bias=0.5, noise=0.001, pull=pull(0, 0, 0), aims_at_softmax=False),
        line("huffman", 0, bias=0.0, noise=0.0, exact="normalised", aims_at_softmax=True),
        line("warp", 0, skipped="cannot be built", aims_at_softmax=False),
    ),
)


def test_lines_of_a_ledger_become_times():
    run = {"contender": "full", "num_classes": 10}
    found = timed(
        "full",
        [
            {"run": run, "step_seconds": [2.0, 1.0, 9.0]},
            {"run": {**run, "num_classes": 20}, "skipped": "too slow"},
            {"run": {**run, "contender": "nce"}, "step_seconds": [1.0]},
        ],
    )
    assert (found.seconds, found.skipped) == ({10: 2.0}, {20: "too slow"})


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


def test_step_times_the_fastest_with_most_classes_first():
    assert break_even_heading(WHOLE) == (
        "", "10,000 classes", "100,000 classes", "1,000,000 classes", "break-even, classes"
    )  # fmt: skip
    assert break_even_rows(WHOLE) == [
        ["TAPAS, priority", "30 ms", "30 ms", "30 ms", "30,000"],
        ["Full softmax", "10 ms", "100 ms", "1 s", "–"],
        ["NCE", "1 ms", "1 ms", "–", "below 10,000"],
    ]
    assert break_even_rows(all_of(FULL, ("warp", 2, 2, 2)))[1][-1] == "above 1,000,000"


def test_bias_with_its_chance_and_its_direction():
    assert bias_rows(WHOLE) == [
        ["TAPAS, priority", "16", "0.2500", "0.1250", "+0.100 / 0 / -0.100", ""],
        ["NCE", "16", "0.5000", "0.0010", "0 / 0 / 0", "aims elsewhere, by design"],
        ["Hierarchical softmax, Huffman", "–", "–", "–", "–", "normalised"],
        ["WARP", "–", "–", "–", "–", "cannot be built"],
    ]


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


def test_the_circle_lies_on_both_lines():
    ((x, y),) = circles(step_times_figure(all_of(FULL, ("tapas", 0.02, 0.05, 0.08))))
    part = np.log(x / 1e4) / np.log(10)
    assert 0 < part < 1
    np.testing.assert_allclose(y, 0.02 * (0.05 / 0.02) ** part, rtol=1e-6)
    np.testing.assert_allclose(y, 0.01 * 10**part, rtol=1e-6)


def test_what_was_not_measured_is_said():
    figure = step_times_figure(all_of(FULL, ("one-vs-all", 0.01, 0.1, "too slow")))
    assert "100 ms  One-vs-all (at 100,000)" in words(figure)
    assert "Not measured: One-vs-all at 1,000,000." in note(figure)
    assert "Circles" not in note(figure)


def test_nothing_to_draw_is_told():
    with pytest.raises(DataError, match=r"nothing to draw: no step times were measured\."):
        step_times_figure(all_of())
