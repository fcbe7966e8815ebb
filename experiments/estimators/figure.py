"""The figure of step times: every head alone, over the number of classes."""

import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from experiments.estimators.page import COMMAND, Estimators, Timed
from experiments.quick import FEW_REPEATS, quick_figure
from tapas.comparison.figure_style import add_title, as_png
from tapas.comparison.figures import ALWAYS, PALE_WORDS, Label, draw_line, label_beside, panel
from tapas.comparison.tables import describe_time
from tapas.errors import DataError


def draw_step_times(found: Estimators, *, quick: bool = False) -> bytes:
    """Seconds of a step of the head alone over the number of classes: a PNG."""
    figure = step_times_figure(found)
    return as_png(quick_figure(figure, FEW_REPEATS) if quick else figure)


def step_times_figure(found: Estimators) -> Figure:
    drawn = [each for each in found.times if each.seconds]
    if not drawn:
        raise DataError("there is nothing to draw: no step times were measured.")
    classes = sorted({number for each in drawn for number in each.seconds})
    figure, axes, inches = panel(len(drawn))
    labels: list[Label] = []
    for each in drawn:
        loud = each.name in ALWAYS
        x, y = zip(*_points(each), strict=True)
        draw_line(axes, x, y, each, loud=loud)
        text = f"{describe_time(y[-1])}  {each.title}"
        if x[-1] < classes[-1]:
            text += f" (at {x[-1]:,})"
        labels.append((text, x[-1], y[-1], each.colour if loud else PALE_WORDS, loud))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(classes[0] / 1.05, classes[-1] * 1.05)
    # a number close below another gets no label
    named = [n for n in classes if not any(n < other < 2 * n for other in classes)]
    axes.set_xticks(named, [f"{number:,}" for number in named])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: describe_time(value)))
    axes.set_xlabel("classes")
    marks = _mark_break_even(axes, found)
    label_beside(axes, labels, inches)
    note = (
        "The head alone: loss, backward, update of rows; median. "
        + ("Circles: from here on a step of the full softmax takes longer. " if marks else "")
        + _describe_skipped(drawn)
        + f"`{COMMAND}`"
    )
    add_title(figure, "Time of a step over the number of classes", note)
    return figure


def _points(each: Timed) -> list[tuple[int, float]]:
    """(classes, seconds), rising."""
    return sorted(each.seconds.items())


def _mark_break_even(axes: Axes, found: Estimators) -> int:
    """A circle where the line of the full softmax crosses that of another head; how many."""
    marked = 0
    for each in found.times:
        points, number = _points(each), found.break_even(each.name)
        if number is None or not points[0][0] < number <= points[-1][0]:
            continue
        height, loud = _on_line(points, number), each.name in ALWAYS
        axes.plot(
            [number], [height], marker="o", markersize=8 if loud else 5, markerfacecolor="white",
            markeredgecolor=each.colour if loud else PALE_WORDS, zorder=5, linestyle="none",
        )  # fmt: skip
        marked += 1
    return marked


def _on_line(points: Sequence[tuple[int, float]], number: float) -> float:
    """Height of a line through `points` at `number`, both logarithmic."""
    for (a, low), (b, high) in pairwise(points):
        if a <= number <= b:
            part = math.log(number / a) / math.log(b / a)
            return math.exp(math.log(low) + part * math.log(high / low))
    return points[0][1] if number < points[0][0] else points[-1][1]


def _describe_skipped(drawn: Sequence[Timed]) -> str:
    parts = []
    for each in drawn:
        if each.skipped:
            numbers = ", ".join(f"{number:,}" for number in each.skipped)
            parts.append(f"{each.title} at {numbers}")
    return f"Not measured: {'; '.join(parts)}. " if parts else ""
