"""Figures of the synthetic studies, drawn from their ledgers. Nothing is trained here.

A line ends at the value of the table: precision@1 on all test points. Its other points are on
the first 10,000 of them.
"""

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.quick import GENERATED_POINTS, quick_figure
from experiments.shards.figure import shards_figure
from experiments.synthetic.experiment import Cell
from experiments.synthetic.studies import Study
from experiments.synthetic.tasks import Sizes, load_task, network_task
from tapas.comparison.figure_style import (
    COLOURS,
    INK,
    add_title,
    as_png,
    blank_figure,
    label_ends,
    label_ends_on_log,
    plain,
)
from tapas.comparison.ledger import Ledger
from tapas.evaluation.intervals import student_interval

LEFT_OUT = 2_500  # first steps, as in the paper
Label = tuple[str, float, str]  # text, height, colour


def draw_study(study: Study, ledger: Ledger) -> bytes:
    """A PNG: one panel for each group of curves, mean over seeds with 95 % bands."""
    draw = {"shards": shards_figure, "pool-size": _pool_size}.get(study.name, _panels)
    figure = draw(study, ledger)
    return as_png(quick_figure(figure, GENERATED_POINTS) if study.is_quick else figure)


def _panels(study: Study, ledger: Ledger) -> Figure:
    illustrated = int(study.name == "figure-2")
    columns = len(study.panels) + illustrated
    figure = blank_figure(5.75 * len(study.panels) + 4 * illustrated, 4.6)
    grid = figure.add_gridspec(
        1, columns, left=0.05, right=1 - 2 / figure.get_figwidth(), wspace=0.62,
        top=1 - 0.85 / figure.get_figheight(), bottom=0.75 / figure.get_figheight(),
    )  # fmt: skip
    if illustrated:
        _illustrate(figure.add_subplot(grid[0, 0]))
    drawn: list[tuple[Axes, list[Label]]] = []
    for place, (title, cells) in enumerate(study.panels):
        spot = grid[0, place + illustrated]
        axes = figure.add_subplot(spot, sharey=drawn[0][0] if drawn else None)
        axes.set_title(title, loc="left", fontsize=11, color=INK)
        drawn.append((axes, _curves(axes, study, ledger, cells)))
    for axes, labels in drawn:  # after all lines, since the panels share a y axis
        label_ends(axes, labels)
    _words(figure, study)
    return figure


def _shade(cell: Cell, place: int, count: int) -> str:
    """Full and sampled softmax have their colours; a rule's cells go from light to dark."""
    if cell.method == "full":
        return COLOURS["full softmax"]
    if cell.presample_factor == 1:
        return COLOURS["sampled softmax"]
    red, green, blue = matplotlib.colors.to_rgb(COLOURS[f"TAPAS {cell.method}"])
    paler = 0.55 * (1 - place / max(1, count - 1))
    return matplotlib.colors.to_hex(
        (red + (1 - red) * paler, green + (1 - green) * paler, blue + (1 - blue) * paler)
    )


def _curves(axes: Axes, study: Study, ledger: Ledger, cells: Sequence[Cell]) -> list[Label]:
    plain(axes)
    labels = []
    adaptive = [cell for cell in cells if cell.presample_factor > 1]
    first = LEFT_OUT if study.experiment.steps > 2 * LEFT_OUT else 0
    for cell in cells:
        results = study.experiment.results(ledger, cell)
        steps = [point[0] for point in results[0]["curve"]]
        by_seed = [[*(p[1] for p in r["curve"][:-1]), r["accuracy"]] for r in results]
        bands = [student_interval(values) for values in zip(*by_seed, strict=True)]
        kept = [i for i, step in enumerate(steps) if step >= first]
        place = adaptive.index(cell) if cell in adaptive else 0
        colour = _shade(cell, place, len(adaptive))
        x, mean = [steps[i] for i in kept], [bands[i].mean for i in kept]
        axes.plot(x, mean, color=colour, linewidth=1.8, zorder=3)
        if len(results) > 1:
            axes.fill_between(
                x, [bands[i].low for i in kept], [bands[i].high for i in kept],
                color=colour, alpha=0.18, linewidth=0,
            )  # fmt: skip
        labels.append((f"{mean[-1]:.4f}  {_short(cell)}", mean[-1], colour))
    bayes = load_task(study.experiment.task).bayes_accuracy
    if bayes is not None and any(cell.method == "full" for cell in cells):
        axes.axhline(bayes, color=INK, linewidth=1.1, dashes=(5, 4))
        labels.append((f"{bayes:.4f}  Bayes-optimal", bayes, INK))
    axes.set_xlim(first, study.experiment.steps)
    axes.set_xlabel("training steps")
    return labels


def _short(cell: Cell) -> str:
    if cell.method == "full":
        return "full softmax"
    if cell.temperature is not None:
        return f"τ = {cell.temperature}"
    return f"n={cell.num_samples}, r={cell.presample_factor}"


def _pool_size(study: Study, ledger: Ledger) -> Figure:
    """Final accuracy against the share of all classes that the pool holds."""
    figure = blank_figure(9, 5)
    figure.subplots_adjust(left=0.08, right=0.76, top=0.83, bottom=0.16)
    axes = figure.add_subplot()
    plain(axes)
    num_classes = load_task(study.experiment.task).num_classes
    labels = []
    for title, cells in study.panels:
        colour = COLOURS[f"TAPAS {cells[0].method}"]
        share = [min(c.num_samples * c.presample_factor / num_classes, 1) * 100 for c in cells]
        found = [
            student_interval([r["accuracy"] for r in study.experiment.results(ledger, c)])
            for c in cells
        ]
        mean = [f.mean for f in found]
        axes.errorbar(
            share, mean, yerr=[f.half_width for f in found], color=colour, linewidth=1.8,
            marker="o", markersize=4, capsize=3, elinewidth=1,
        )  # fmt: skip
        labels.append((f"{mean[-1]:.4f}  {title}", mean[-1], colour))
    axes.set_xscale("log")
    axes.axvspan(1, 10, color="#f4f4f4", zorder=0)
    axes.set_xticks(
        [1, 2, 5, 10, 20, 50, 100], ["1 %", "2 %", "5 %", "10 %", "20 %", "50 %", "all"]
    )
    axes.minorticks_off()
    axes.set_xlabel("size of the pool, share of all classes (grey: the paper's 1 to 10 %)")
    axes.set_xlim(1.4, 110)
    label_ends_on_log(axes, labels)
    _words(figure, study)
    return figure


def _illustrate(axes: Axes) -> None:
    """Figure 2(a): 300 points of 5 classes, hidden dimensions (5, 5, 10), in the plane."""
    sizes = Sizes(num_classes=5, num_train=300, num_validation=1, num_test=1)
    task = network_task(sizes, dims=(5, 5, 10, 2))
    palette = matplotlib.colormaps["tab10"]
    for label in range(5):
        mine = task.train.x[task.train.y == label]
        axes.scatter(mine[:, 0], mine[:, 1], s=9, color=palette(label), linewidth=0, alpha=0.8)
    plain(axes)
    axes.set_title("generated points: 5 classes in the plane", loc="left", fontsize=11, color=INK)


def _words(figure: Figure, study: Study) -> None:
    note = (
        f"Mean of {len(study.experiment.seeds)} seeds with 95 % intervals; settings chosen on "
        f"validation points. `python -m experiments {study.name}`"
    )
    add_title(figure, f"{study.title}: precision@1 on the test points", note)
