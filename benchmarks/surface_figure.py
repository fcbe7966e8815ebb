"""Heat maps of the record of bench_surface.py: ratios of step times over B, D and n."""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from surface_grid import (
    ONE_FLOOR,
    PLAIN_ONE,
    PLAIN_TWO,
    TENSORFLOW_TWO,
    THREADS,
    TWO_ONE,
    Cell,
    Ratio,
    Surface,
    missed,
    surface_of,
)

from tapas.comparison.figure_style import INK, add_title, as_png, blank_figure
from tapas.comparison.figure_style import NOTE as NOTE_INK

GOOD, EVEN, BAD = "#2b7a78", "#f7f7f4", "#c8791b"
CENTRES = {PLAIN_ONE: 1.0, PLAIN_TWO: 1.0, TWO_ONE: 1.25, ONE_FLOOR: 1.5, TENSORFLOW_TWO: 1.0}
WIDEST = 4.0  # times the centre, where colours end
WORDS = {
    PLAIN_ONE: "one pass;\nhigher is better,\nwhite: as fast as plain",
    PLAIN_TWO: "two passes against one;\nhigher is better,\nwhite: as fast as plain",
    TWO_ONE: "what the second pass adds;\nlower is better, white: 1.25",
    ONE_FLOOR: "lower is better, white: 1.5",
    TENSORFLOW_TWO: "two passes against one;\nhigher is better,\nwhite: as fast",
}
NOTE = (
    "Medians of the ratios of step times, both taken in the same turn. Green: in our favour; "
    "orange: not. A frame marks a cell that misses the target for its size. Plain PyTorch and "
    "TensorFlow make one pass with the same n. The floor is the bare reads of rows and the three "
    "matrix products."
)
PANEL, GAP, LABELS, TOP = 2.15, 0.3, 2.6, 0.85  # inches


def draw_surface(record: dict[str, Any]) -> dict[str, bytes]:
    """PNG files by name, one for each number of threads."""
    found = {}
    for threads in THREADS:
        surface = surface_of(record["results"], threads)
        if surface:
            words = "two threads" if threads > 1 else "one thread"
            name = f"surface-{words.replace(' ', '-')}.png"
            found[name] = as_png(_figure(surface, words))
    return found


def _figure(surface: Surface, words: str) -> Figure:
    samples = sorted({cell.n for cell in surface})
    ratios = [ratio for ratio in CENTRES if ratio.medians(surface)]
    width = LABELS + len(samples) * (PANEL + GAP)
    height = TOP + len(ratios) * (PANEL + GAP) + 0.75
    figure = blank_figure(width, height)
    for row, ratio in enumerate(ratios):
        bottom = height - TOP - row * (PANEL + GAP) - PANEL
        figure.text(0.2 / width, (bottom + PANEL) / height, str(ratio), color=INK, **TITLE)
        under = (bottom + PANEL - 0.25) / height
        figure.text(0.2 / width, under, WORDS[ratio], color=NOTE_INK, fontsize=8.5, va="top")
        for column, num_samples in enumerate(samples):
            left = LABELS + column * (PANEL + GAP)
            axes = figure.add_axes((left / width, bottom / height, PANEL / width, PANEL / height))
            cells = {c: v for c, v in ratio.medians(surface).items() if c.n == num_samples}
            _panel(axes, ratio, cells, surface)
            if row == 0:
                axes.set_title(f"n = {num_samples:,}", fontsize=11, color=INK)
            if row == len(ratios) - 1:
                axes.set_xlabel("D", color=INK, fontsize=10)
            if column == 0:
                axes.set_ylabel("B", color=INK, fontsize=10, rotation=0, labelpad=8)
            else:
                axes.set_yticklabels([])
    add_title(figure, f"Step time of the head at every size, {words}", NOTE)
    return figure


TITLE: dict[str, Any] = {"fontsize": 10.5, "weight": "bold", "va": "top"}


def _panel(axes: Axes, ratio: Ratio, cells: dict[Cell, float], surface: Surface) -> None:
    batches = sorted({cell.B for cell in surface})
    dims = sorted({cell.D for cell in surface})
    scale = _colours(ratio)
    for cell, value in cells.items():
        x, y = dims.index(cell.D), batches.index(cell.B)
        colour = scale.to_rgba(math.log(value))
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white"))
        dark = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] < 0.55
        axes.text(
            x + 0.5,
            y + 0.5,
            f"{value:.2f}" if value < 9.95 else f"{value:.0f}",
            color="white" if dark else INK,
            ha="center",
            va="center",
            fontsize=9,
        )
    for cell, value in cells.items():  # above all patches
        if missed(ratio, cell, value):
            corner = (dims.index(cell.D) + 0.06, batches.index(cell.B) + 0.06)
            frame = Rectangle(corner, 0.88, 0.88, fill=False, edgecolor=INK, linewidth=1.3)
            axes.add_patch(frame)
    axes.set(xlim=(0, len(dims)), ylim=(len(batches), 0))
    axes.set_xticks([i + 0.5 for i in range(len(dims))], [str(dim) for dim in dims])
    axes.set_yticks([i + 0.5 for i in range(len(batches))], [f"{batch:,}" for batch in batches])
    axes.tick_params(length=0, labelsize=9, colors=INK)
    for side in axes.spines.values():
        side.set_visible(False)


def _colours(ratio: Ratio) -> ScalarMappable:
    """Logarithmic, white at the centre of the ratio, green in our favour."""
    ends = (BAD, EVEN, GOOD) if ratio.kind == "at least" else (GOOD, EVEN, BAD)
    centre = math.log(CENTRES[ratio])
    norm = TwoSlopeNorm(centre, centre - math.log(WIDEST), centre + math.log(WIDEST))
    return ScalarMappable(norm, LinearSegmentedColormap.from_list("verdict", ends))
