"""The figures of a comparison: MAP@20 over training time, as a PNG and as charts of a page.

The best three, full softmax, sampled softmax and TAPAS are in colour, all others in grey.
"""

from collections.abc import Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tapas.charts import Estimate, Line, interval_chart, line_chart, moved_inside, spread
from tapas.comparison.figure_style import FAINT, INK, add_title, as_png, blank_figure, plain
from tapas.comparison.results import Comparison
from tapas.comparison.tables import best_of, quality, ranked, short_title
from tapas.errors import DataError
from tapas.evaluation.intervals import Interval, block_bootstrap

ALWAYS = ("full", "sampled", "tapas", "tapas-top")
BEST = 3  # in colour beside these
PALE = "#cccccc"
PALE_WORDS = "#8a8a8a"
LETTER = 0.175  # inches from one label to the next
Label = tuple[str, float, float, str, bool]  # text, x and y of its line's end, colour, bold


class Drawn(Protocol):
    """A method with its one colour."""

    @property
    def colour(self) -> str: ...


def draw_quality(comparison: Comparison) -> bytes:
    """MAP@20 on the test points over training seconds: a PNG."""
    return as_png(quality_figure(comparison))


def quality_charts(comparison: Comparison) -> dict[str, str]:
    """MAP@20 over training seconds, and of the best moments with intervals: SVG, by title."""
    drawn, shown = [each for each in ranked(comparison) if each.curve], outstanding(comparison)
    edge = max(each.curve[-1].seconds for each in drawn)
    lines = [
        Line(
            short_title(each),
            [(p.seconds, p.quality) for p in each.curve],
            each.colour,
            quiet=each.name not in shown,
            band=[(p.low, p.high) for p in each.curve] if len(each.finals) > 1 else (),
        )
        for each in drawn
    ]
    for other in comparison.baselines:
        height = float(other.result["map@20"])
        lines.append(Line(other.title, [(0, height), (edge, height)], quiet=True, dashed=True))
    best = best_of(ranked(comparison))
    rows = [_estimate(short_title(each), quality(each), marked=each is best) for each in drawn]
    for other in comparison.baselines:
        rows.append(_estimate(other.title, block_bootstrap([other.result], "map@20")))
    over_time, at_best = "MAP@20 over seconds of training", "MAP@20 at the best moment"
    return {
        over_time: line_chart(lines, x="seconds", title=over_time, from_zero=True),
        at_best: interval_chart(rows, title=at_best),
    }


def _estimate(name: str, found: Interval, *, marked: bool = False) -> Estimate:
    return Estimate(name, found.mean, found.low, found.high, marked)


def outstanding(comparison: Comparison) -> set[str]:
    """Names of the contenders drawn in colour."""
    best = [each.name for each in ranked(comparison)[:BEST]]
    return {*best, *ALWAYS}


def quality_figure(comparison: Comparison) -> Figure:
    drawn = [each for each in ranked(comparison) if each.curve]
    if not drawn:
        raise DataError("there is nothing to draw: no method has a final run.")
    figure, axes, inches = panel(len(drawn) + len(comparison.baselines))
    shown = outstanding(comparison)
    edge = 1.04 * max(each.curve[-1].seconds for each in drawn)
    labels: list[Label] = []
    for each in drawn:
        loud = each.name in shown
        x, y = [p.seconds for p in each.curve], [p.quality for p in each.curve]
        draw_line(axes, x, y, each, loud=loud)
        if loud and len(each.finals) > 1:
            low, high = [p.low for p in each.curve], [p.high for p in each.curve]
            axes.fill_between(x, low, high, color=each.colour, alpha=0.14, linewidth=0)
        colour, final = each.colour if loud else PALE_WORDS, quality(each).mean
        axes.plot(
            [edge], [final], "o", color=each.colour if loud else PALE, markersize=5 if loud else 3,
            clip_on=False, zorder=3,
        )  # fmt: skip
        labels.append((f"{final:.4f}  {each.title}", edge, final, colour, loud))
    for other in comparison.baselines:
        height = float(other.result["map@20"])
        axes.axhline(height, color=FAINT, linewidth=0.8, dashes=(2, 3), zorder=1)
        labels.append((f"{height:.4f}  {other.title}", edge, height, INK, False))
    axes.set_xlim(0, edge)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds of training")
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 3, 5, 6, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    label_beside(axes, labels, inches)
    note = (
        "Dots at the right edge and numbers: the table's MAP@20, on all test points, at the best "
        f"moment by validation points. {about_lines(comparison)} `tapas compare`"
    )
    add_title(figure, "Quality over time: MAP@20 on the test points", note)
    return figure


def about_lines(comparison: Comparison) -> str:
    """What the lines are, in sentences."""
    drawn = [each for each in ranked(comparison) if each.curve]
    seeds = max(len(each.finals) for each in drawn)
    bands = f"Mean of {seeds} seeds, bands from lowest to highest." if seeds > 1 else "One seed."
    some = round(sum(drawn[0].finals[0]["curve_points"]))
    return f"Lines: on {some:,} test points. {bands} Dotted: without training."


def panel(num_labels: int) -> tuple[Figure, Axes, float]:
    """One panel and its height in inches, enough for the labels beside it."""
    height = max(3.4, LETTER * num_labels + 0.3)
    wide, tall = 10.5, height + 1.75
    figure = blank_figure(wide, tall)
    axes = figure.add_axes((0.8 / wide, 1.05 / tall, 5.9 / wide, height / tall))
    plain(axes)
    return figure, axes, height


def draw_line(
    axes: Axes, x: Sequence[float], y: Sequence[float], each: Drawn, *, loud: bool
) -> None:
    axes.plot(
        x, y, color=each.colour if loud else PALE, linewidth=1.9 if loud else 1.1,
        marker="o", markersize=3.5 if loud else 2, zorder=3 if loud else 2, clip_on=False,
    )  # fmt: skip


def label_beside(axes: Axes, labels: Sequence[Label], inches: float) -> None:
    """Texts beside a panel `inches` high, with thin lines to the ends of their curves."""
    gap = LETTER / inches  # as a part of the height
    ends = [axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
            for _, x, y, _, _ in labels]  # fmt: skip
    places = moved_inside(spread([float(end[1]) for end in ends], gap), gap, 0.0, 1.0)
    for (text, _, _, colour, loud), end, place in zip(labels, ends, places, strict=True):
        axes.annotate(
            text, (min(1.0, float(end[0])), float(end[1])), (1.06, place),
            xycoords="axes fraction", textcoords="axes fraction", va="center", fontsize=8.5,
            color=colour, annotation_clip=False, parse_math=False,
            weight="bold" if loud else "normal",
            arrowprops={
                "arrowstyle": "-", "color": colour if loud else PALE, "linewidth": 0.6,
                "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0,
            },
        )  # fmt: skip
