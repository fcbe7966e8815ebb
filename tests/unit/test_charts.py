"""Charts: well-formed SVG of any names and numbers, marks at their places."""

import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapas.charts import Estimate, Line, interval_chart, line_chart, share_chart, short, ticks

HOSTILE = st.text(max_size=30) | st.sampled_from(["<script>", "a'b\"c", "]]>", "\x00", "שלום"])
NUMBERS = st.floats(-1e12, 1e12) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0])


def parsed(svg):
    """The elements of a chart, which must be well-formed and inside of finite bounds."""
    root = ET.fromstring(svg)
    for element in root.iter():
        for name in ("x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "width", "height"):
            if name in element.attrib:
                assert math.isfinite(float(element.attrib[name]))
    return root


def texts(root):
    return [element.text for element in root.iter("text")]


@given(
    lines=st.lists(
        st.tuples(HOSTILE, st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5)), max_size=4
    ),
    mark=st.none() | st.tuples(st.floats(-1e3, 1e3), HOSTILE),
    title=HOSTILE,
)
def test_any_lines_are_a_chart(lines, mark, title):
    parsed(line_chart([Line(*line) for line in lines], x="step", title=title, mark=mark))


@given(
    rows=st.lists(st.tuples(HOSTILE, NUMBERS, NUMBERS, NUMBERS, st.booleans()), max_size=5),
    title=HOSTILE,
)
def test_any_intervals_are_a_chart(rows, title):
    parsed(interval_chart([Estimate(*row) for row in rows], title=title))


@given(
    rows=st.dictionaries(
        HOSTILE, st.dictionaries(HOSTILE, st.floats(0, 1), max_size=4), max_size=3
    ),
    title=HOSTILE,
)
def test_any_shares_are_a_chart(rows, title):
    parsed(share_chart(rows, title=title))


@given(low=st.floats(-1e9, 1e9), size=st.floats(1e-6, 1e9))
def test_ticks_enclose_the_numbers_and_are_few(low, size):
    found = ticks(low, low + size)
    slack = 1e-6 * max(1.0, abs(low), size)
    assert found[0] <= low + slack
    assert found[-1] >= low + size - slack
    assert 2 <= len(found) <= 8
    assert found == sorted(found)


def test_a_line_ends_where_its_last_point_is_and_the_best_is_marked():
    lines = [Line("up", [(0, 0.0), (5, 2.0), (10, 4.0)]), Line("flat", [(0, 1.0), (10, 1.0)])]
    root = parsed(line_chart(lines, x="step", title="t", mark=(5, "best")))
    up, flat = root.iter("circle")
    assert float(up.attrib["cy"]) < float(flat.attrib["cy"])
    assert up.attrib["cx"] == flat.attrib["cx"]
    (mark,) = (each for each in root.iter("line") if each.attrib["class"] == "mark")
    path = next(root.iter("polyline")).attrib["points"].split()
    assert mark.attrib["x1"] == path[1].partition(",")[0]
    assert {"up", "flat", "step", "best"} <= set(texts(root))


def test_an_interval_is_as_wide_as_it_is_and_ours_has_its_own_colour():
    rows = [Estimate("ours", 0.2, 0.1, 0.3, marked=True), Estimate("theirs", 0.1, 0.1, 0.1)]
    root = parsed(interval_chart(rows, title="t"))
    bars = [each for each in root.iter("line") if each.attrib["class"] != "grid"]
    width = [float(bar.attrib["x2"]) - float(bar.attrib["x1"]) for bar in bars]
    assert width[0] > 50
    assert width[1] == 0
    assert [bar.attrib["class"] for bar in bars] == ["s0", "s4"]
    assert {"0.2000", "0.1000"} <= set(texts(root))


def test_shares_are_of_the_whole_width_and_say_their_percent():
    root = parsed(share_chart({"all": {"a": 3.0, "b": 1.0}, "hits": {"b": 2.0}}, title="t"))
    bars = [float(each.attrib["width"]) for each in root.iter("rect")]
    assert bars[0] == pytest.approx(3 * bars[1], abs=0.3)
    assert bars[2] == pytest.approx(bars[0] + bars[1], abs=0.3)
    assert {"a: 75 % of all, 0 % of hits", "b: 25 % of all, 100 % of hits"} <= set(texts(root))


def test_numbers_are_short_and_neighbours_differ():
    numbers = (0.0, 0.125, 10.0, 10.5, 12_000.0, 2.5e6, 1e-7, 3e38)
    words = ["0", "0.125", "10", "10.5", "12,000", "2.5M", "1e-07", "3e+38"]
    assert [short(number) for number in numbers] == words


def test_many_names_at_the_end_of_lines_neither_overlap_nor_leave_the_chart():
    """They all end at the same place."""
    lines = [Line(f"method {i} with a name that is long", [(0, 0.0), (9, 0.2)]) for i in range(30)]
    root = parsed(line_chart(lines, x="seconds", title="t"))
    height = float(root.attrib["viewBox"].split()[3])
    named = [text for text in root.iter("text") if "method" in (text.text or "")]
    places = sorted(float(text.attrib["y"]) for text in named)
    assert len(places) == 30
    assert all(b - a >= 15.9 for a, b in pairwise(places))
    assert places[0] > 5
    assert places[-1] < height
    assert {text.find("title").text for text in named} == {line.name for line in lines}


def test_quiet_lines_are_grey_and_only_levels_among_them_are_named():
    lines = [
        Line("loud", [(0, 0.0), (1, 1.0)], "#123456", band=[(0.0, 0.1), (0.9, 1.2)]),
        Line("quiet", [(0, 0.0), (1, 0.5)], quiet=True),
        Line("level", [(0, 0.3), (1, 0.3)], quiet=True, dashed=True),
    ]
    root = parsed(line_chart(lines, x="step", title="t", from_zero=True))
    assert {"loud", "level"} <= set(texts(root))
    assert "quiet" not in texts(root)
    found = {line.attrib["class"]: line for line in root.iter("polyline")}
    assert set(found) == {"s-own", "s4", "s4 dashed"}
    assert found["s-own"].attrib["style"] == "--own: #123456"
    assert len(list(root.iter("polygon"))) == 1


def test_one_evaluation_is_a_dot_with_its_step():
    root = parsed(line_chart([Line("a", [(9, 0.3)])], x="step", title="t", mark=(9, "best")))
    assert {"9", "best"} <= set(texts(root))
    assert "9.5" not in texts(root)
