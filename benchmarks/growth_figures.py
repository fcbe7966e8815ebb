"""Figures of the record of bench_growth.py: step time over C, r, n, B and D, and the break-even."""

import math
import statistics
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator
from measuring import two_digits

from tapas.charts import spread
from tapas.comparison.figure_style import (
    COLOURS,
    INK,
    add_title,
    as_png,
    blank_figure,
    plain,
)

COLOUR = {
    "TAPAS priority": COLOURS["TAPAS priority"],
    "TAPAS top": COLOURS["TAPAS top"],
    "plain PyTorch": COLOURS["sampled softmax"],
    "full softmax": COLOURS["full softmax"],
    "full softmax in chunks": INK,
}
WORDS = {
    "C": "classes, C",
    "r": "presample factor, r",
    "n": "classes kept, n",
    "B": "examples in a batch, B",
    "D": "dimensions, D",
}
STEP = (
    "A step is the loss, its gradients and the update of the rows. Medians; both axes are "
    "logarithmic. Plain PyTorch is a hand-written sampled softmax without a second pass; the full "
    "softmax is cross_entropy of a linear layer, in chunks it is torch's linear_cross_entropy."
)
LEFT_OUT = (
    "Lines end where a contender does not fit into memory beside ours or would take too long."
)
LABEL_GAP = 0.075  # least distance between two labels, as a share of the panel's height
Sweep = dict[str, Any]


def draw_growth(record: dict[str, Any]) -> dict[str, bytes]:
    """PNG files by name."""
    sweeps = record["results"]["sweeps"]
    growth = {name: sweep for name, sweep in sweeps.items() if name in WORDS}
    even = {name: sweep for name, sweep in sweeps.items() if name not in WORDS}
    return {
        "growth.png": as_png(_growth(growth)),
        "break-even.png": as_png(_break_even(even, record["results"]["break_even"])),
    }


def _growth(sweeps: dict[str, Sweep]) -> Figure:
    figure = blank_figure(13, 13)
    grid = figure.add_gridspec(
        3, 2, left=0.055, right=0.81, top=0.925, bottom=0.085, hspace=0.42, wspace=0.8
    )
    places = [grid[0, :], *(grid[i, j] for i in (1, 2) for j in (0, 1))]
    for place, (name, sweep) in zip(places, sweeps.items(), strict=False):
        _panel(figure.add_subplot(place), sweep, WORDS[name])
    add_title(figure, "Step time of the softmax head as one size grows", f"{STEP} {LEFT_OUT}")
    return figure


def _break_even(sweeps: dict[str, Sweep], found: dict[str, dict[str, float | None]]) -> Figure:
    figure = blank_figure(13, 5.2)
    panels = figure.subplots(1, max(1, len(sweeps)), squeeze=False)[0]
    figure.subplots_adjust(left=0.055, right=0.81, top=0.83, bottom=0.2, wspace=0.8)
    for axes, sweep in zip(panels, sweeps.values(), strict=False):
        _panel(axes, sweep, WORDS["C"])
        classes = found[str(sweep["fixed"]["B"])]["classes"]
        if classes is not None:
            axes.axvline(classes, color=INK, linewidth=1, dashes=(4, 3))
            axes.annotate(
                f"break-even at {two_digits(classes)}",
                (classes, 1),
                (4, -10),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                color=INK,
                fontsize=9,
            )
    title = (
        "Break-even: the number of classes above which TAPAS priority is faster than a full softmax"
    )
    add_title(figure, title, STEP)
    return figure


def _panel(axes: Axes, sweep: Sweep, words: str) -> None:
    plain(axes)
    axes.set(xscale="log", yscale="log")
    lines = {name: _medians(sweep, name) for name in COLOUR}
    lines = {name: line for name, line in lines.items() if line}
    for name, line in lines.items():
        x, y = zip(*line, strict=True)
        axes.plot(x, y, color=COLOUR[name], linewidth=2, marker="o", markersize=4, zorder=3)
    ticks = [point["x"] for point in sweep["points"]]
    axes.set_xticks(ticks, [_short(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(words)
    fixed = ", ".join(f"{key}={_short(value)}" for key, value in sweep["fixed"].items())
    axes.set_title(f"milliseconds per step; {fixed}", loc="left", fontsize=10, color=INK)
    _label(axes, lines, sweep["plain_draws"])


def _medians(sweep: Sweep, name: str) -> list[tuple[float, float]]:
    """(x, milliseconds) of every point at which `name` was timed."""
    return [
        (point["x"], 1000 * statistics.median(point["seconds"][name]))
        for point in sweep["points"]
        if name in point["seconds"]
    ]


def _label(axes: Axes, lines: dict[str, list[tuple[float, float]]], plain_draws: str) -> None:
    """Labels at the ends of the lines; in a column for lines that reach the right edge."""
    low, high = (math.log(limit) for limit in axes.get_ylim())
    right = max(line[-1][0] for line in lines.values())
    complete = [name for name, line in lines.items() if line[-1][0] == right]
    heights = [(math.log(lines[name][-1][1]) - low) / (high - low) for name in complete]
    places = dict(zip(complete, spread(heights, LABEL_GAP), strict=True))
    for name, line in lines.items():
        text = f"{name}, {plain_draws} draws" if name == "plain PyTorch" else name
        text = f"{_duration(line[-1][1])}  {text}"
        style: dict[str, Any] = {"color": COLOUR[name], "va": "center", "fontsize": 9.5}
        if name not in places:
            (x, y), others = line[-1], [dict(other) for other in lines.values()]
            is_highest = all(other.get(x, 0.0) <= y for other in others)
            aside = (5, 9 if is_highest else -11)
            axes.annotate(text, (x, y), aside, textcoords="offset points", **style)
            continue
        axes.annotate(
            text,
            line[-1],
            (1.03, places[name]),
            textcoords="axes fraction",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": COLOUR[name], "linewidth": 0.7,
                "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3,
            },
            **style,
        )  # fmt: skip


def _duration(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.1f} ms" if milliseconds < 100 else f"{milliseconds:.0f} ms"


def _short(value: float) -> str:
    """10^6 for powers of ten from 10,000 on, otherwise with commas."""
    power = round(math.log10(value))
    return f"$10^{power}$" if value >= 10_000 and value == 10**power else f"{value:,}"
