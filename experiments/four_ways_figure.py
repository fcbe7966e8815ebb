"""The figure of `four-ways`: MAP@20 against seconds of training, for README.md.

Small and in large letters, so that it can be read on a phone.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from experiments.quick import GENERATED_POINTS
from tapas.comparison.figure_style import (
    COLOURS,
    INK,
    NOTE,
    blank_figure,
    label_ends_on_log,
    plain,
    wrap,
)
from tapas.comparison.ledger import Result

WIDE, TALL = 7.2, 4.5  # inches


def four_ways_figure(results: Sequence[Result], *, quick: bool = False) -> Figure:
    """One line for each method, labelled with its final MAP@20 and its time for a step."""
    *methods, bayes = results
    run = bayes["run"]
    figure = blank_figure(WIDE, TALL, dpi=200)
    axes = figure.add_axes((0.6 / WIDE, 1.15 / TALL, 3.65 / WIDE, 2.6 / TALL))
    plain(axes)
    axes.tick_params(labelsize=11)
    low = min(method["curve"][0]["map@20"] for method in methods)
    high = max(result["map@20"] for result in results)
    room = 0.1 * (high - low) or 0.1
    axes.set_ylim(max(0, low - room), high + room)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("seconds of training (logarithmic)", fontsize=11)
    right = max(method["curve"][-1]["seconds"] for method in methods)
    axes.axhline(bayes["map@20"], color=INK, linewidth=1.2, dashes=(5, 4))
    for method in methods:
        x = [moment["seconds"] for moment in method["curve"]]
        y = [moment["map@20"] for moment in method["curve"]]
        axes.plot(x, y, color=_colour(method), linewidth=2, marker="o", markersize=4, zorder=3)
        axes.hlines(y[-1], x[-1], 1.4 * right, color=_colour(method), linewidth=0.7, linestyle=":")
    axes.set_xlim(right=1.4 * right)
    labels = [(_label(result), result["map@20"], _colour(result)) for result in results]
    label_ends_on_log(axes, labels, fontsize=11, gap=0.085)
    title = f"MAP@20 against training time, {run['classes']:,} classes"
    figure.text(0.02, 1 - 0.3 / TALL, title, fontsize=14, color=INK, va="center", weight="bold")
    below = f"One model trained four ways, {run['steps']:,} steps each"
    below = GENERATED_POINTS if quick else below
    figure.text(0.02, 1 - 0.58 / TALL, below, fontsize=11, color=INK, va="center")
    note = (
        "In brackets: time of a step. Dashed: the best that any model can reach. "
        f"{run['num_held_out']:,} test examples ranked over all classes, one seed. "
        f"n = {run['num_samples']}, r = {run['presample_factor']}, batches of {run['batch']}."
    )
    figure.text(0.02, 0.12 / TALL, wrap(note, WIDE, 9.5), fontsize=9.5, color=NOTE, va="bottom")
    return figure


def _colour(result: Result) -> str:
    return COLOURS.get(result["run"]["method"], INK)


def _label(result: Result) -> str:
    text = f"{result['map@20']:.3f}  {result['run']['method']}"
    if "step_seconds" not in result:
        return text
    value = 1000 * result["step_seconds"]
    return f"{text} ({value:.1f} ms)" if value < 9.95 else f"{text} ({value:.0f} ms)"
