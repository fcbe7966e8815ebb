"""One picture of `train_four_ways`: MAP@20 against steps, and against seconds of training."""

import io

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tapas.training.four_ways import FourWaysResult, MethodResult

COLOURS = {  # one colour for each method; grey is the baseline that needs no sampling
    "sampled softmax": "#c8791b",
    "TAPAS top": "#2b7a78",
    "TAPAS priority": "#b5224f",
    "full softmax": "#7a7a7a",
}
INK = "#333333"
FAINT = "#999999"
LABEL_GAP = 0.05  # least distance between two labels, as a part of the height of a panel


def draw_four_ways(result: FourWaysResult) -> bytes:
    """A PNG. Labels stand beside their lines, the dashed line is the best possible score."""
    figure = Figure(figsize=(11, 5.4), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    figure.subplots_adjust(left=0.055, right=0.975, top=0.79, bottom=0.17, wspace=0.5)
    low = min(method.curve[0].score.map_at_20 for method in result.methods)
    high = max([result.bayes.map_at_20, *(m.final.map_at_20 for m in result.methods)])
    room = 0.1 * (high - low) or 0.1
    by_step.set_ylim(max(0, low - room), high + room)
    for axes in (by_step, by_time):
        _plain(axes)
        axes.axhline(result.bayes.map_at_20, color=INK, linewidth=1.2, dashes=(5, 4))
    _against_steps(by_step, result)
    _against_seconds(by_time, result)
    _words(figure, result)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _against_steps(axes: Axes, result: FourWaysResult) -> None:
    for method in result.methods:
        _line(axes, method, [point.step for point in method.curve])
    last = result.config.steps
    axes.set_xlim(0, last * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("training steps")
    axes.set_title("the same number of steps", loc="left", fontsize=11, color=INK)
    bottom, top = axes.get_ylim()
    labels = [(method.name, method.final.map_at_20) for method in result.methods]
    labels.append(("Bayes-optimal", result.bayes.map_at_20))
    places = spread([value for _, value in labels], LABEL_GAP * (top - bottom))
    for (name, value), place in zip(labels, places, strict=True):
        colour = COLOURS.get(name, INK)
        axes.annotate(
            f"{value:.3f}  {name}",
            (last * 1.02, value),
            (last * 1.08, place),
            color=colour,
            va="center",
            fontsize=10,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.7,
                "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0,
            },
        )  # fmt: skip


def _against_seconds(axes: Axes, result: FourWaysResult) -> None:
    for method in result.methods:
        _line(axes, method, [point.seconds for point in method.curve])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("seconds inside those steps, logarithmic")
    axes.set_title("the time they took", loc="left", fontsize=11, color=INK)
    # every curve rises to the right: the upper left corner is free
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    axes.text(
        0.03, 0.83, "median time of a step",
        transform=axes.transAxes, color=INK, va="center", fontsize=10, bbox=paper,
    )  # fmt: skip
    for row, method in enumerate(result.methods, start=1):
        for x, side, text in (
            (0.17, "right", f"{1000 * method.step_seconds:.3g} ms"),
            (0.19, "left", method.name),
        ):
            axes.text(
                x, 0.83 - 0.055 * row, text, ha=side,
                transform=axes.transAxes, color=COLOURS[method.name], va="center", fontsize=10,
                bbox=paper,
            )  # fmt: skip


def spread(values: list[float], gap: float) -> list[float]:
    """Places near `values`, at least `gap` apart and in the same order.

    >>> spread([1.0, 1.0, 5.0], 1.0)
    [0.5, 1.5, 5.0]
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    clusters: list[tuple[float, int]] = []  # centre and size, lowest first
    for index in order:
        centre, size = values[index], 1
        while clusters and centre - clusters[-1][0] < gap * (size + clusters[-1][1]) / 2:
            below, others = clusters.pop()
            centre = (centre * size + below * others) / (size + others)
            size += others
        clusters.append((centre, size))
    flat = [c + gap * (i - (size - 1) / 2) for c, size in clusters for i in range(size)]
    places = [0.0] * len(values)
    for index, place in zip(order, flat, strict=True):
        places[index] = place
    return places


def _line(axes: Axes, method: MethodResult, x: list[int] | list[float]) -> None:
    axes.plot(
        x,
        [point.score.map_at_20 for point in method.curve],
        color=COLOURS[method.name],
        linewidth=2,
        marker="o",
        markersize=4,
        clip_on=False,
        zorder=3,
    )


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=INK, which="both", labelsize=9, color=FAINT)
    axes.grid(axis="y", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.label.set(color=INK, fontsize=10)


def _words(figure: Figure, result: FourWaysResult) -> None:
    config = result.config
    figure.text(
        0.02, 0.955, f"Four ways to train a softmax over {config.task.num_classes:,} classes",
        fontsize=15, color=INK, va="center", weight="bold",
    )  # fmt: skip
    figure.text(
        0.02, 0.9, f"MAP@20 on {config.num_held_out:,} held-out examples, ranked over all classes",
        fontsize=11, color=INK, va="center",
    )  # fmt: skip
    figure.text(
        0.02, 0.035,
        f"One seed ({config.seed}). n = {config.num_samples}, r = {config.presample_factor}, "
        f"batches of {config.batch_size}, {result.num_threads} threads, Adagrad at one pair of "
        "learning rates for all, chosen for sampled softmax. Synthetic task (Zipf frequencies).",
        fontsize=8.5, color="#666666", va="center",
    )  # fmt: skip
