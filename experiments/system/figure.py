"""The figure of Table 1's system: what a step costs, and how often its gradients are stale."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.synthetic.experiment import Cell, sampled
from experiments.system.config import MORE, RULES
from experiments.system.results import SystemResults, paper_rates, spread
from tapas.comparison.figure_style import COLOURS, FAINT, INK, as_png, blank_figure, plain
from tapas.evaluation.intervals import student_interval

METHODS = {  # as the colours are called
    "sampled": "sampled softmax",
    "top": "TAPAS top",
    "priority": "TAPAS priority",
}
APART = 0.12  # between the dots of one cell
NAMES = (
    (0.05, "— the paper", FAINT),
    *(
        (0.15 + 0.12 * place, f"● {name}", COLOURS[name])
        for place, name in enumerate(METHODS.values())
    ),
)  # place, text, colour


def draw_system(found: SystemResults) -> bytes:
    """A PNG, from the findings alone."""
    return as_png(system_figure(found))


def system_figure(found: SystemResults) -> Figure:
    """Two panels: times of a step relative to n, r=1 with the paper's; shares of collisions."""
    figure = blank_figure(13, 4.8)
    grid = figure.add_gridspec(1, 2, left=0.05, right=0.97, wspace=0.18, top=0.8, bottom=0.2)
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
        axes.set_xlim(-0.5, len(names) - 0.5)
        draw(axes, found)
        axes.set_ylim(bottom=0)
    system = found.system
    figure.text(
        0.012, 0.94, f"Table 1 with {system.workers} workers and {system.servers} servers",
        fontsize=14, color=INK, va="center", weight="bold",
    )  # fmt: skip
    for x, text, colour in NAMES:
        figure.text(x, 0.875, text, fontsize=9.5, color=colour, va="center")
    figure.text(
        0.012, 0.04,
        f"{found.num_rounds} rounds. Left: medians of ratios inside a round, and their range. "
        "Right: means with 95 % intervals. `python -m experiments table-1`",
        fontsize=8.5, color="#666666", va="center",
    )  # fmt: skip
    return figure


def _columns(found: SystemResults) -> list[tuple[int, Cell]]:
    """Every cell and its place: n small, r = 1 and 8; n large, r = 1 and 8."""
    return [
        (2 * place + (r > 1), cell)
        for place, n in enumerate(found.system.sizes)
        for r in (1, MORE)
        for cell in ([sampled(n)] if r == 1 else [Cell(rule, n, r) for rule in RULES])
    ]


def _times(axes: Axes, found: SystemResults) -> None:
    base = sampled(found.system.sizes[0])
    theirs = list(paper_rates(found.system).values())
    axes.plot(
        [place - 2 * APART for place in range(len(theirs))], [theirs[0] / rate for rate in theirs],
        linestyle="none", marker="_", markersize=16, markeredgewidth=2.5, color=FAINT,
    )  # fmt: skip
    for place, cell in _columns(found):
        ratio = spread(found.slowdowns(cell, base))
        _dot(axes, place, cell, ratio.median, ratio.median - ratio.low, ratio.high - ratio.median)


def _shares(axes: Axes, found: SystemResults) -> None:
    for place, cell in _columns(found):
        share = student_interval(found.collided_share(cell))
        half = 100 * share.half_width if found.num_rounds > 1 else 0
        _dot(axes, place, cell, 100 * share.mean, half, half)


def _dot(axes: Axes, place: int, cell: Cell, height: float, below: float, above: float) -> None:
    colour = COLOURS[METHODS[cell.method]]
    at = place + (APART if cell.method == "priority" else 0)
    axes.errorbar(
        [at], [height], [[below], [above]],
        color=colour, fmt="o", markersize=6, capsize=3, elinewidth=1,
    )  # fmt: skip
