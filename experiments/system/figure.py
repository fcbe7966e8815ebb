"""The figure of Table 1's system: what a step costs, and how often its gradients are stale."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.quick import quick_figure
from experiments.synthetic.experiment import Cell, sampled
from experiments.system.config import MORE, RULES
from experiments.system.results import SystemResults, paper_rates, spread
from tapas.charts import spread as place_apart
from tapas.comparison.figure_style import (
    COLOURS,
    FAINT,
    INK,
    add_title,
    as_png,
    blank_figure,
    plain,
)
from tapas.evaluation.intervals import student_interval
from tapas.phrases import counted

METHODS = {  # as the colours are called
    "sampled": "sampled softmax",
    "top": "TAPAS top",
    "priority": "TAPAS priority",
}
PAPER = -0.2  # where the paper's value stands, from the middle of a column
LABEL_GAP = 0.05  # between two labels of a column, as a part of the height of a panel
Dot = tuple[int, Cell, float, float, float]  # column, cell, value, and the ends of its bar


def draw_system(found: SystemResults, *, quick: bool = False) -> bytes:
    """A PNG, from the results alone."""
    figure = system_figure(found, quick=quick)
    return as_png(quick_figure(figure) if quick else figure)


def system_figure(found: SystemResults, *, quick: bool = False) -> Figure:
    """Two panels: times of a step relative to n, r=1 with the paper's; shares of collisions.

    The paper's times are not drawn in a quick run, which has other n.
    """
    figure = blank_figure(15, 4.8)
    grid = figure.add_gridspec(1, 2, left=0.04, right=0.98, wspace=0.12, top=0.83, bottom=0.21)
    few = found.system.sizes[0]
    panels = (
        (_times, f"time of a step relative to n={few:,}, r=1"),
        (_shares, "pushed rows that another step had changed, %"),
    )
    for place, (draw, title) in enumerate(panels):
        axes = figure.add_subplot(grid[0, place])
        plain(axes)
        axes.set_title(title, loc="left", fontsize=11, color=INK)
        names = [f"n={n:,}\nr={r}" for n in found.system.sizes for r in (1, MORE)]
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.3)
        dots, paper = draw(found)
        paper = [] if quick else paper
        top = 1.06 * max([high for *_, high in dots] + paper)
        axes.set_ylim(0, top)
        _draw(axes, dots, paper, LABEL_GAP * top, digits=2 if draw is _times else 1)
    system = found.system
    note = (
        "Sampled: sampled softmax. Top: TAPAS with the paper's rule. Priority: TAPAS with ours. "
        f"{counted(found.num_rounds, 'round')}. Left: medians of ratios inside a round, and "
        "their range. Right: means with 95 % intervals. `python -m experiments table-1`"
    )
    workers = f"{system.workers} worker{'s' * (system.workers > 1)}"
    add_title(figure, f"Table 1 with {workers} and {system.servers} servers", note)
    return figure


def _columns(found: SystemResults) -> list[tuple[int, Cell]]:
    """Every cell and its place: n small, r = 1 and 8; n large, r = 1 and 8."""
    return [
        (2 * place + (r > 1), cell)
        for place, n in enumerate(found.system.sizes)
        for r in (1, MORE)
        for cell in ([sampled(n)] if r == 1 else [Cell(rule, n, r) for rule in RULES])
    ]


def _times(found: SystemResults) -> tuple[list[Dot], list[float]]:
    """Medians with their range, and the paper's, by column."""
    base = sampled(found.system.sizes[0])
    dots = []
    for column, cell in _columns(found):
        ratio = spread(found.slowdowns(cell, base))
        dots.append((column, cell, ratio.median, ratio.low, ratio.high))
    theirs = list(paper_rates(found.system).values())
    return dots, [theirs[0] / rate for rate in theirs]


def _shares(found: SystemResults) -> tuple[list[Dot], list[float]]:
    """Means with their intervals; the paper has none."""
    dots = []
    for column, cell in _columns(found):
        share = student_interval(found.collided_share(cell))
        half = share.half_width if found.num_rounds > 1 else 0
        ends = (100 * (share.mean - half), 100 * (share.mean + half))
        dots.append((column, cell, 100 * share.mean, *ends))
    return dots, []


def _draw(axes: Axes, dots: list[Dot], paper: list[float], gap: float, *, digits: int) -> None:
    """Dots with bars, each labelled with its value and its method."""
    for column, height in enumerate(paper):
        axes.plot(
            column + PAPER, height,
            marker="_", markersize=14, markeredgewidth=2.5, color=FAINT,
        )  # fmt: skip
        text = f"{height:.2f} paper" if column == 0 else f"{height:.2f}"
        _write(axes, text, column + PAPER, height + 0.7 * gap, FAINT, middle=True)
    for column in {column for column, *_ in dots}:
        mine = [dot for dot in dots if dot[0] == column]
        heights = place_apart([value for _, _, value, _, _ in mine], gap)
        for (_, cell, value, low, high), height in zip(mine, heights, strict=True):
            colour = COLOURS[METHODS[cell.method]]
            axes.errorbar(
                [column], [value], [[value - low], [high - value]],
                color=colour, fmt="o", markersize=6, capsize=3, elinewidth=1,
            )  # fmt: skip
            _write(axes, f"{value:.{digits}f} {cell.method}", column + 0.09, height, colour)


def _write(axes: Axes, text: str, x: float, y: float, colour: str, *, middle: bool = False) -> None:
    axes.text(
        x, y, text,
        color=colour, fontsize=9.5, va="center", ha="center" if middle else "left",
    )  # fmt: skip
