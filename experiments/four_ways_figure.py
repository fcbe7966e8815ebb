"""The figure of `four-ways`: MAP@20 against steps, and against seconds of training."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tapas.comparison.figure_style import (
    COLOURS,
    INK,
    add_words,
    as_png,
    blank_figure,
    label_ends,
    plain,
)
from tapas.comparison.ledger import Result


def draw_four_ways(results: Sequence[Result]) -> bytes:
    """A PNG. Labels stand beside their lines, the dashed line is the best possible score."""
    *methods, bayes = results
    figure = blank_figure(11, 5.4)
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    figure.subplots_adjust(left=0.055, right=0.975, top=0.79, bottom=0.17, wspace=0.5)
    low = min(method["curve"][0]["map@20"] for method in methods)
    high = max(result["map@20"] for result in results)
    room = 0.1 * (high - low) or 0.1
    by_step.set_ylim(max(0, low - room), high + room)
    panels = (
        (by_step, "step", "the same number of steps", "training steps"),
        (by_time, "seconds", "the time they took", "seconds inside those steps, logarithmic"),
    )
    for axes, name, title, below in panels:
        plain(axes)
        axes.axhline(bayes["map@20"], color=INK, linewidth=1.2, dashes=(5, 4))
        axes.set_title(title, loc="left", fontsize=11, color=INK)
        axes.set_xlabel(below)
        for method in methods:
            axes.plot(
                [moment[name] for moment in method["curve"]],
                [moment["map@20"] for moment in method["curve"]],
                color=_colour(method), linewidth=2, marker="o", markersize=4, clip_on=False,
                zorder=3,
            )  # fmt: skip
    run = bayes["run"]
    by_step.set_xlim(0, run["steps"] * 1.02)
    by_step.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    ends = [(f"{r['map@20']:.3f}  {r['run']['method']}", r["map@20"], _colour(r)) for r in results]
    label_ends(by_step, [ends[-1], *ends[:-1]])
    by_time.set_xscale("log")
    by_time.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _write_step_times(by_time, methods)
    threads = methods[0]["threads"]
    note = (
        f"MAP@20 on {run['num_held_out']:,} held-out examples, ranked over all classes. One seed "
        f"({run['seed']}). n = {run['num_samples']}, r = {run['presample_factor']}, batches of "
        f"{run['batch']}, {threads} thread{'s' if threads > 1 else ''}, Adagrad at one pair of "
        "learning rates for all, chosen for sampled softmax. Synthetic task (Zipf frequencies)."
    )
    add_words(figure, f"Four ways to train a softmax over {run['classes']:,} classes", note)
    return as_png(figure)


def _colour(result: Result) -> str:
    return COLOURS.get(result["run"]["method"], INK)


def _write_step_times(axes: Axes, methods: Sequence[Result]) -> None:
    """Every curve rises to the right: the upper left corner is free."""
    lines = [(0.03, 0, "left", "median time of a step", INK)]
    for row, method in enumerate(methods, start=1):
        value = 1000 * method["step_seconds"]
        words = f"{value:.1f} ms" if value < 99.95 else f"{value:.0f} ms"
        lines.append((0.17, row, "right", words, _colour(method)))
        lines.append((0.19, row, "left", method["run"]["method"], _colour(method)))
    for x, row, side, text, colour in lines:
        axes.text(
            x, 0.83 - 0.055 * row, text,
            transform=axes.transAxes, ha=side, va="center", fontsize=10, color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
