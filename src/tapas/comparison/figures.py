"""Two figures of a comparison, from its results alone: quality over time, step time over classes.

Contenders keep one colour throughout; all but a few are grey: the best, the full softmax,
sampled softmax and TAPAS stand out.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from tapas.comparison.results import Comparison, Standing, measured_times
from tapas.comparison.summary import ranked, time_words
from tapas.drawing.style import FAINT, INK, as_png, blank_figure, plain, spread
from tapas.errors import DataError
from tapas.paper.real.figures import add_words

ALWAYS = ("full", "sampled", "tapas", "tapas-top")
BEST = 3  # stand out beside these
PALE = "#cccccc"
PALE_WORDS = "#8a8a8a"
LETTER = 0.175  # inches from one label to the next
Label = tuple[str, float, float, str, bool]  # text, x and y of its line's end, colour, bold


def draw_quality(comparison: Comparison) -> bytes:
    """MAP@20 on the test points over training seconds: a PNG."""
    return as_png(quality_figure(comparison))


def draw_step_times(comparison: Comparison) -> bytes:
    """Seconds of a step of the head alone over the number of classes: a PNG."""
    return as_png(step_times_figure(comparison))


def outstanding(comparison: Comparison) -> set[str]:
    """Names of those that are drawn in colour."""
    best = [each.name for each in ranked(comparison)[:BEST]]
    return {*best, *ALWAYS}


def quality_figure(comparison: Comparison) -> Figure:
    drawn = [each for each in ranked(comparison) if each.curve]
    if not drawn:
        raise DataError("there is nothing to draw: no contender has a final run.")
    figure, axes, inches = _panel(len(drawn) + len(comparison.references))
    shown = outstanding(comparison)
    right = max(each.curve[-1].seconds for each in drawn)
    labels: list[Label] = []
    for each in drawn:
        loud = each.name in shown
        x, y = [p.seconds for p in each.curve], [p.quality for p in each.curve]
        _line(axes, x, y, each, loud=loud)
        if loud and len(each.finals) > 1:
            low, high = [p.low for p in each.curve], [p.high for p in each.curve]
            axes.fill_between(x, low, high, color=each.colour, alpha=0.14, linewidth=0)
        colour = each.colour if loud else PALE_WORDS
        labels.append((f"{y[-1]:.4f}  {each.title}", x[-1], y[-1], colour, loud))
    for other in comparison.references:
        height = float(other.result["map@20"])
        axes.axhline(height, color=FAINT, linewidth=0.8, dashes=(2, 3), zorder=1)
        labels.append((f"{height:.4f}  {other.title}", right, height, INK, False))
    axes.set_xlim(0, right)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds of training, at the contender's own pace")
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 3, 5, 6, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    _label(axes, labels, inches)
    seeds = max(len(each.finals) for each in drawn)
    bands = f"Mean of {seeds} seeds, bands from lowest to highest." if seeds > 1 else "One seed."
    note = (
        f"{bands} Settings chosen on validation points with the same search time for all. Along "
        "a run, models are judged at some of the test points, so that ends differ from the "
        "table. Dotted: no training at all. "
        "`tapas compare`"
    )
    add_words(figure, "Quality over time: MAP@20 on the test points", note)
    return figure


def step_times_figure(comparison: Comparison) -> Figure:
    drawn = [each for each in comparison.standings if _timed(each)]
    if not drawn:
        raise DataError("there is nothing to draw: no step times were measured.")
    classes = sorted({number for each in drawn for number, _ in _timed(each)})
    figure, axes, inches = _panel(len(drawn))
    shown = outstanding(comparison)
    labels: list[Label] = []
    for each in drawn:
        loud = each.name in shown
        x, y = zip(*_timed(each), strict=True)
        _line(axes, x, y, each, loud=loud)
        text = f"{time_words(y[-1])}  {each.title}"
        if x[-1] < classes[-1]:
            text += f" (at {x[-1]:,})"
        labels.append((text, x[-1], y[-1], each.colour if loud else PALE_WORDS, loud))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(classes[0] / 1.05, classes[-1] * 1.05)
    axes.set_xticks(classes, [f"{number:,}" for number in classes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: time_words(value)))
    axes.set_xlabel("classes")
    marks = _mark_break_even(axes, comparison, shown)
    _label(axes, labels, inches)
    note = (
        "The head alone: loss, backward, update of rows; median. "
        + ("Circles: from here on a step of the full softmax takes longer. " if marks else "")
        + _skipped_words(drawn)
        + "`tapas compare`"
    )
    add_words(figure, "Time of a step over the number of classes", note)
    return figure


def _timed(standing: Standing) -> list[tuple[int, float]]:
    """(classes, seconds), rising, where it was measured."""
    return sorted(measured_times(standing).items())


def _mark_break_even(axes: Axes, comparison: Comparison, shown: set[str]) -> int:
    """A circle where the line of the full softmax crosses that of a contender; how many."""
    marked = 0
    for each in comparison.standings:
        points, number = _timed(each), comparison.break_even(each.name)
        if number is None or not points[0][0] < number <= points[-1][0]:
            continue
        height = _on_line(points, number)
        loud = each.name in shown
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


def _skipped_words(drawn: Sequence[Standing]) -> str:
    parts = []
    for each in drawn:
        left_out = [t for t in each.step_times.values() if t.seconds is None]
        if left_out:
            numbers = ", ".join(f"{t.num_classes:,}" for t in left_out)
            parts.append(f"{each.title} at {numbers}")
    return f"Not measured: {'; '.join(parts)}. " if parts else ""


def _panel(num_labels: int) -> tuple[Figure, Axes, float]:
    """One panel, and how high it is: enough for its labels, which stand at the right."""
    height = max(3.4, LETTER * num_labels + 0.3)
    wide, tall = 10.5, height + 1.75
    figure = blank_figure(wide, tall)
    axes = figure.add_axes((0.8 / wide, 1.05 / tall, 5.9 / wide, height / tall))
    plain(axes)
    return figure, axes, height


def _line(
    axes: Axes, x: Sequence[float], y: Sequence[float], each: Standing, *, loud: bool
) -> None:
    axes.plot(
        x, y, color=each.colour if loud else PALE, linewidth=1.9 if loud else 1.1,
        marker="o", markersize=3.5 if loud else 2, zorder=3 if loud else 2, clip_on=False,
    )  # fmt: skip


def _label(axes: Axes, labels: Sequence[Label], inches: float) -> None:
    """Texts beside a panel `inches` high, apart from each other, with thin lines to their ends."""
    gap = LETTER / inches  # as a part of the height
    ends = [axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
            for _, x, y, _, _ in labels]  # fmt: skip
    places = within_panel(spread([float(end[1]) for end in ends], gap), gap)
    for (text, _, _, colour, loud), end, place in zip(labels, ends, places, strict=True):
        axes.annotate(
            text, (min(1.0, float(end[0])), float(end[1])), (1.06, place),
            xycoords="axes fraction", textcoords="axes fraction", va="center", fontsize=8.5,
            color=colour, annotation_clip=False, weight="bold" if loud else "normal",
            arrowprops={
                "arrowstyle": "-", "color": colour if loud else PALE, "linewidth": 0.6,
                "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0,
            },
        )  # fmt: skip


def within_panel(places: Sequence[float], gap: float) -> list[float]:
    """`places`, pushed between 0 and 1 while they stay `gap` apart and in order.

    >>> within_panel([-0.5, 0.5, 1.25], 0.25)
    [0.0, 0.5, 1.0]
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    found, least = list(places), 0.0
    for index in order:
        found[index] = least = max(found[index], least)
        least += gap
    most = 1.0
    for index in reversed(order):
        found[index] = most = min(found[index], most)
        most -= gap
    return found
