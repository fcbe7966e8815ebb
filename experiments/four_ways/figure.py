"""One picture of `train_four_ways`: MAP@20 against steps, and against seconds of training."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from experiments.four_ways.training import FourWaysResult, MethodResult
from tapas.comparison.figure_style import COLOURS, INK, as_png, blank_figure, label_ends, plain


def draw_four_ways(result: FourWaysResult) -> bytes:
    """A PNG. Labels stand beside their lines, the dashed line is the best possible score."""
    figure = blank_figure(11, 5.4)
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    figure.subplots_adjust(left=0.055, right=0.975, top=0.79, bottom=0.17, wspace=0.5)
    low = min(method.curve[0].score.map_at_20 for method in result.methods)
    high = max([result.bayes.map_at_20, *(m.final.map_at_20 for m in result.methods)])
    room = 0.1 * (high - low) or 0.1
    by_step.set_ylim(max(0, low - room), high + room)
    for axes in (by_step, by_time):
        plain(axes)
        axes.axhline(result.bayes.map_at_20, color=INK, linewidth=1.2, dashes=(5, 4))
    _against_steps(by_step, result)
    _against_seconds(by_time, result)
    _words(figure, result)
    return as_png(figure)


def _against_steps(axes: Axes, result: FourWaysResult) -> None:
    for method in result.methods:
        _line(axes, method, [point.step for point in method.curve])
    axes.set_xlim(0, result.config.steps * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("training steps")
    axes.set_title("the same number of steps", loc="left", fontsize=11, color=INK)
    best = result.bayes.map_at_20
    labels = [(f"{best:.3f}  Bayes-optimal", best, INK)]
    for method in result.methods:
        end = method.final.map_at_20
        labels.append((f"{end:.3f}  {method.name}", end, COLOURS[method.name]))
    label_ends(axes, labels)


def _against_seconds(axes: Axes, result: FourWaysResult) -> None:
    for method in result.methods:
        _line(axes, method, [point.seconds for point in method.curve])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("seconds inside those steps, logarithmic")
    axes.set_title("the time they took", loc="left", fontsize=11, color=INK)
    # every curve rises to the right: the upper left corner is free
    lines = [(0.03, 0, "left", "median time of a step", INK)]
    for row, method in enumerate(result.methods, start=1):
        colour = COLOURS[method.name]
        lines.append((0.17, row, "right", _milliseconds(method.step_seconds), colour))
        lines.append((0.19, row, "left", method.name, colour))
    for x, row, side, text, colour in lines:
        axes.text(
            x, 0.83 - 0.055 * row, text,
            transform=axes.transAxes, ha=side, va="center", fontsize=10, color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip


def _milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.1f} ms" if value < 99.95 else f"{value:.0f} ms"


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
    threads = f"{result.num_threads} thread{'s' if result.num_threads > 1 else ''}"
    figure.text(
        0.02, 0.035,
        f"One seed ({config.seed}). n = {config.num_samples}, r = {config.presample_factor}, "
        f"batches of {config.batch_size}, {threads}, Adagrad at one pair of learning rates "
        "for all, chosen for sampled softmax. Synthetic task (Zipf frequencies).",
        fontsize=8.5, color="#666666", va="center",
    )  # fmt: skip
