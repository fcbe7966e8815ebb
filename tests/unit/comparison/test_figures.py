"""What is drawn follows the numbers: lines, colours, labels and circles."""

import re
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text
from oracle.comparison_results import CLASSES, comparison, reference, standing, step_times

from tapas.comparison.contenders import CONTENDERS
from tapas.comparison.figures import (
    PALE,
    draw_quality,
    draw_step_times,
    outstanding,
    quality_figure,
    step_times_figure,
)
from tapas.errors import DataError

GREY_ONE = "negative-sampling"


def field():
    """Six contenders; the last is neither among the best nor always in colour."""
    names = ("full", "sampled", "tapas", "gbce", "sce", GREY_ONE)
    scores = (0.1, 0.12, 0.2, 0.15, 0.3, 0.05)
    return [standing(name, score) for name, score in zip(names, scores, strict=True)]


def words(figure):
    axes = figure.axes[0]
    return [text.get_text() for text in axes.texts]


def lines(figure):
    """{colour: (x, y)} of the lines with markers, without circles."""
    found = {}
    for line in figure.axes[0].lines:
        if line.get_marker() == "o" and line.get_linestyle() == "-":
            found[to_hex(line.get_color())] = (list(line.get_xdata()), list(line.get_ydata()))
    return found


def note(figure):
    return " ".join(re.sub(r"\s+", " ", text.get_text()) for text in figure.texts)


def test_quality_is_drawn_over_seconds_in_the_colour_of_the_contender():
    drawn = lines(quality_figure(comparison(*field())))
    x, y = drawn["#b5224f"]
    assert x == [6, 15, 30, 60]
    np.testing.assert_allclose(y, [0.04, 0.1, 0.16, 0.2])


def test_all_but_a_few_are_grey():
    found = comparison(*field())
    assert outstanding(found) == {"sce", "tapas", "gbce", "full", "sampled", "tapas-top"}
    drawn = lines(quality_figure(found))
    assert len(drawn) == 6
    np.testing.assert_allclose(drawn[PALE][1][-1], 0.05)


def test_labels_stand_in_the_order_of_their_ends():
    references = (reference("most popular", 0.02),)
    figure = quality_figure(comparison(*field(), references=references))
    figure.canvas.draw()
    texts = sorted(figure.axes[0].texts, key=lambda text: -text.xyann[1])
    assert [text.get_text() for text in texts] == [
        "0.3000  Scalable cross-entropy",
        "0.2000  TAPAS, priority",
        "0.1500  gBCE",
        "0.1200  Sampled softmax",
        "0.1000  Full softmax",
        "0.0500  Negative sampling",
        "0.0200  most popular",
    ]
    boxes = [Text.get_window_extent(text) for text in texts]
    assert all(above.y0 >= below.y1 - 1 for above, below in pairwise(boxes))
    assert max(box.x1 for box in boxes) <= figure.bbox.x1


def test_twenty_labels_at_one_height_do_not_overlap_or_leave_the_figure():
    crowd = [standing(name, 0.1, step_times=step_times(1, 1, 1)) for name in CONTENDERS]
    for figure in (quality_figure(comparison(*crowd)), step_times_figure(comparison(*crowd))):
        figure.canvas.draw()
        texts = figure.axes[0].texts  # without the lines that lead to them
        boxes = sorted((Text.get_window_extent(t) for t in texts), key=lambda box: box.y0)
        assert len(boxes) == len(CONTENDERS)
        assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
        assert boxes[0].y0 >= 0
        assert boxes[-1].y1 <= figure.bbox.y1


def test_labels_of_a_crowd_at_the_bottom_push_none_of_the_others_out():
    crowd = [standing(name, 0.001 * place) for place, name in enumerate(CONTENDERS)]
    high = (reference("co-occurrence", 0.25), reference("the true distribution", 0.27, 5.0))
    figure = quality_figure(comparison(*crowd, references=high))
    figure.canvas.draw()
    texts = sorted(figure.axes[0].texts, key=lambda text: text.xyann[1])
    assert [text.get_text()[8:] for text in texts[-3:]] == [
        CONTENDERS["tapas-top"].title, "co-occurrence", "the true distribution"
    ]  # fmt: skip
    heights = [text.xyann[1] for text in texts]
    assert heights[0] >= -1e-9
    assert heights[-1] <= 1 + 1e-9
    boxes = [Text.get_window_extent(text) for text in texts]
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))


def test_bands_and_words_on_seeds():
    one = [standing(name, 0.1, seeds=1) for name in ("full", "tapas")]
    figure = quality_figure(comparison(*one))
    assert not figure.axes[0].collections
    assert "One seed." in note(figure)
    figure = quality_figure(comparison(*field()))
    assert len(figure.axes[0].collections) == 5  # not for the grey one
    assert "Mean of 2 seeds, bands from lowest to highest." in note(figure)


def test_a_contender_without_results_is_not_drawn():
    figure = quality_figure(comparison(standing("full", 0.1), standing("nce", 0.2, finals=())))
    assert words(figure) == ["0.1000  Full softmax"]


def timed(*others):
    full = standing("full", 0.1, step_times=step_times(0.01, 0.1, 1.0))
    return comparison(full, *others)


def circles(figure):
    return [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for line in figure.axes[0].lines
        if line.get_linestyle() == "None"
    ]


def test_step_times_and_the_circle_where_full_softmax_becomes_slower():
    figure = step_times_figure(
        timed(
            standing("tapas", 0.2, step_times=step_times(0.1, 0.1, 0.1)),
            standing("nce", 0.2, step_times=step_times(0.001, 0.001, 0.001)),  # always faster
            standing("warp", 0.2, step_times=step_times(9, 9, 9)),  # never
        )
    )
    assert lines(figure)["#b5224f"] == (list(CLASSES), [0.1] * 3)
    assert circles(figure) == [pytest.approx((100_000, 0.1))]
    assert words(figure) == [
        "1 s  Full softmax", "100 ms  TAPAS, priority", "1 ms  NCE", "9 s  WARP"
    ]  # fmt: skip
    assert "Circles: from here on a step of the full softmax takes longer." in note(figure)
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"


def test_the_circle_lies_on_the_line_of_the_contender():
    figure = step_times_figure(
        timed(standing("tapas", 0.2, step_times=step_times(0.02, 0.05, 0.08)))
    )
    ((x, y),) = circles(figure)
    part = np.log(x / 1e4) / np.log(10)
    assert 0 < part < 1
    np.testing.assert_allclose(y, 0.02 * (0.05 / 0.02) ** part, rtol=1e-6)
    np.testing.assert_allclose(y, 0.01 * 10**part, rtol=1e-6)  # and on that of the full softmax


def test_what_was_not_measured_is_said():
    figure = step_times_figure(
        timed(standing("one-vs-all", 0.1, step_times=step_times(0.01, 0.1, "too slow")))
    )
    assert "100 ms  One-vs-all (at 100,000)" in words(figure)
    assert "Not measured: One-vs-all at 1,000,000." in note(figure)
    assert "Circles" not in note(figure)


def test_nothing_to_draw():
    empty = comparison(standing("full", 0.1, finals=()))
    with pytest.raises(DataError, match=r"nothing to draw: no contender has a final run\."):
        quality_figure(empty)
    with pytest.raises(DataError, match=r"nothing to draw: no step times were measured\."):
        step_times_figure(empty)


def test_pictures_are_the_same_every_time():
    found = timed(*field()[1:])
    for draw in (draw_quality, draw_step_times):
        assert draw(found).startswith(b"\x89PNG")
        assert draw(found) == draw(found)
