"""How many samples a method needs: MAP@20 at the end of a run against n."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from tapas.drawing.style import INK, as_png, label_ends, plain
from tapas.paper.real.comparisons import Evidence
from tapas.paper.real.figures import add_words, blank_grid, nothing_to_draw
from tapas.paper.real.panels import NAMES, colour_of
from tapas.paper.real.plan import CELLS, FULL, SAMPLED

COLUMNS = 2
METHODS = ("sampled", "top", "priority")


def draw_sizes(sets: Sequence[Evidence]) -> bytes:
    return as_png(sizes_figure(sets))


def sizes_figure(sets: Sequence[Evidence]) -> Figure:
    """A panel for each set; intervals over users and seeds."""
    drawn = [each for each in sets if each.has(SAMPLED)]
    if not drawn:
        raise nothing_to_draw([(each.plan, each.ledger) for each in sets])
    rows = -(-len(drawn) // COLUMNS)
    figure, grid = blank_grid(rows, COLUMNS, width=4.2, height=2.7, beside=2.4)
    for place, each in enumerate(drawn):
        axes = figure.add_subplot(grid[place // COLUMNS, place % COLUMNS])
        mine = each.plan.real_set
        title = f"{mine.title}, {mine.num_classes:,} classes"
        axes.set_title(title, loc="left", fontsize=11, color=INK)
        _against_samples(axes, each)
    note = (
        "At the end of a run, test points; intervals of 95 % over users and seeds. TAPAS keeps n "
        "of 8 n candidates. Settings chosen on validation points. `tapas paper figure-3`"
    )
    add_words(figure, "MAP@20 against the number of samples in the loss", note)
    return figure


def _against_samples(axes: Axes, each: Evidence) -> None:
    plain(axes)
    labels, sizes = [], set()
    n = each.plan.real_set.num_samples
    for method in METHODS:
        cells = sorted(c for c in CELLS if c.method == method and each.has(c))
        if not cells:
            continue
        x, scores = [c.num_samples(n) for c in cells], [each.score(c) for c in cells]
        mean = [score.mean for score in scores]
        spread = [[s.mean - s.low for s in scores], [s.high - s.mean for s in scores]]
        axes.errorbar(
            x, mean, yerr=spread, color=colour_of(cells[0]), marker="o", markersize=4,
            linewidth=1.8, elinewidth=0.8, capsize=2,
        )  # fmt: skip
        labels.append((f"{mean[-1]:.4f}  {NAMES[method]}", mean[-1], colour_of(cells[0])))
        sizes |= set(x)
    if each.has(FULL):
        score = each.score(FULL).mean
        axes.axhline(score, color=colour_of(FULL), linewidth=1.3, dashes=(4, 2.5))
        labels.append((f"{score:.4f}  {NAMES['full']}", score, colour_of(FULL)))
    axes.set_xscale("log")
    axes.set_xticks(sorted(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("n, samples in the loss")
    label_ends_on_log(axes, labels)


def label_ends_on_log(axes: Axes, labels: list[tuple[str, float, str]]) -> None:
    """`label_ends` measures along the axis, which a logarithmic one bends: hence a twin."""
    twin = axes.twiny()
    twin.set_xlim(0, 1)
    twin.set_xticks([])
    for side in twin.spines.values():
        side.set_visible(False)
    label_ends(twin, labels)
