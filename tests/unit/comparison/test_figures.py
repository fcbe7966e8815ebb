"""Lines, colours, labels and circles of the figures of a comparison."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.text import Text
from oracle.comparison_results import comparison, method, reference

from tapas.charts import spread
from tapas.comparison.contenders import CONTENDERS
from tapas.comparison.figures import (
    PALE,
    draw_quality,
    outstanding,
    quality_figure,
)
from tapas.errors import DataError

GREY_ONE = "negative-sampling"


def field():
    """Six contenders; the last one is neither among the best nor always coloured."""
    names = ("full", "sampled", "tapas", "gbce", "sce", GREY_ONE)
    scores = (0.1, 0.12, 0.2, 0.15, 0.3, 0.05)
    return [method(name, score) for name, score in zip(names, scores, strict=True)]


def lines(figure):
    """{colour: (x, y)} of the lines with markers, without circles."""
    found = {}
    for line in figure.axes[0].lines:
        if line.get_marker() == "o" and line.get_linestyle() == "-":
            found[to_hex(line.get_color())] = (list(line.get_xdata()), list(line.get_ydata()))
    return found


def test_quality_is_drawn_over_seconds_with_most_methods_in_grey():
    found = comparison(*field())
    assert outstanding(found) == {"sce", "tapas", "gbce", "full", "sampled", "tapas-top"}
    drawn = lines(quality_figure(found))
    assert len(drawn) == 6
    seconds, quality = drawn[CONTENDERS["tapas"].colour]
    assert seconds == [6, 15, 30, 60]
    np.testing.assert_allclose(quality, [0.04, 0.1, 0.16, 0.2])
    np.testing.assert_allclose(drawn[PALE][1][-1], 0.05)


@pytest.mark.parametrize("apart", [0.0, 0.001])
def test_many_labels_neither_overlap_nor_leave_the_figure(apart):
    crowd = [method(name, 0.1 + apart * place) for place, name in enumerate(CONTENDERS)]
    high = (reference("co-occurrence", 0.35), reference("the true distribution", 0.37, 5.0))
    figure = quality_figure(comparison(*crowd, baselines=high))
    figure.canvas.draw()
    texts = sorted(figure.axes[0].texts, key=lambda text: text.xyann[1])
    assert len(texts) == len(CONTENDERS) + 2
    assert [text.get_text()[8:] for text in texts[-2:]] == [
        "co-occurrence", "the true distribution"
    ]  # fmt: skip
    boxes = [Text.get_window_extent(text) for text in texts]  # without the lines that lead to them
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    assert boxes[0].y0 >= 0
    assert boxes[-1].y1 <= figure.bbox.y1


@given(st.lists(st.floats(0, 10), min_size=1, max_size=9))
def test_spread_labels_keep_their_order_and_their_distance(values):
    places = spread(values, 0.1)
    order = sorted(range(len(values)), key=values.__getitem__)
    ordered = [places[i] for i in order]
    assert all(b - a > 0.0999 for a, b in pairwise(ordered))
    assert math.isclose(sum(places), sum(values), rel_tol=1e-9, abs_tol=1e-9)


def test_a_method_without_results_is_not_drawn():
    late = method("nce", 0.2, finals=())
    figure = quality_figure(comparison(method("full", 0.1), late))
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.1000  Full softmax"]
    assert draw_quality(comparison(method("full", 0.1))).startswith(b"\x89PNG")
    with pytest.raises(DataError, match=r"nothing to draw: no method has a final run\."):
        quality_figure(comparison(late))
