"""The figure of the study on shards: what is left out, what it costs, who has to do the work."""

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from experiments.shards.overlap import IN_ORDER, SHARDS, expected_overlap
from experiments.shards.page import change_by_shards, one_shard
from experiments.synthetic.claims import PAPER_SIZES, overlap_by_shards
from experiments.synthetic.experiment import Cell
from experiments.synthetic.studies import Study
from experiments.synthetic.tasks import sizes_of
from tapas.comparison.figure_style import COLOURS, FAINT, INK, blank_figure, label_ends, plain
from tapas.comparison.ledger import Ledger
from tapas.evaluation.intervals import Interval

Label = tuple[str, float, str]  # text, height, colour
PALE = 0.5


def shards_figure(study: Study, ledger: Ledger) -> Figure:
    """Three panels, from the ledger alone."""
    figure = blank_figure(17.5, 5)
    grid = figure.add_gridspec(
        1, 3, left=0.035, right=0.885, wspace=0.6, top=0.82, bottom=0.19
    )  # fmt: skip
    panels = (
        (_overlaps, "part of the best n that m shards keep", "shards m"),
        (_costs, "change of precision@1 by shards, points", "shards m"),
        (_loads, "busiest shard relative to the mean", "shards m"),
    )
    for place, (draw, title, below) in enumerate(panels):
        axes = figure.add_subplot(grid[0, place])
        plain(axes)
        axes.set_title(title, loc="left", fontsize=11, color=INK)
        axes.set_xlabel(below)
        label_ends(axes, draw(axes, study, ledger))
    experiment = study.experiment
    figure.text(
        0.012, 0.945, f"{study.title}: classes spread at random, each shard keeps its best n/m",
        fontsize=14, color=INK, va="center", weight="bold",
    )  # fmt: skip
    figure.text(
        0.012, 0.04,
        f"Mean of {len(experiment.seeds)} seeds with 95 % intervals. Left: the paper's rule, dots "
        "measured on trained models, lines counted. Middle: against the same seed on one shard. "
        f"`python -m experiments {study.name}`",
        fontsize=8.5, color="#666666", va="center",
    )  # fmt: skip
    return figure


def _paler(colour: str, paler: float) -> str:
    red, green, blue = (part + (1 - part) * paler for part in to_rgb(colour))
    return to_hex((red, green, blue))


def _places(axes: Axes, shards: tuple[int, ...]) -> dict[int, int]:
    """Evenly spaced, which is close to a logarithmic axis."""
    axes.set_xticks(range(len(shards)), [str(m) for m in shards])
    axes.set_xlim(-0.2, len(shards) - 0.8)
    return {m: place for place, m in enumerate(shards)}


def _dots(
    axes: Axes, at: dict[int, int], found: dict[int, Interval], colour: str, fmt: str
) -> None:
    shown = [m for m in found if m in at]
    axes.errorbar(
        [at[m] for m in shown],
        [found[m].mean for m in shown],
        [found[m].half_width for m in shown],
        color=colour, fmt=fmt, markersize=5, linewidth=1.8, capsize=3, elinewidth=1,
    )  # fmt: skip


def _overlaps(axes: Axes, study: Study, ledger: Ledger) -> list[Label]:
    at = _places(axes, SHARDS)
    num_classes = sizes_of(study.experiment.task).num_classes
    labels: list[Label] = []
    for n, results in one_shard(study, ledger, "top").items():
        colour = _paler(COLOURS["TAPAS top"], PALE if not labels else 0)
        found = overlap_by_shards(results, "overlap", "random")
        counted = [expected_overlap(num_classes, n, m) for m in found]
        axes.plot([at[m] for m in found], counted, color=colour, linewidth=1.6)
        _dots(axes, at, found, colour, "o")
        labels.append((f"{counted[-1]:.2f}  n={n:,}", counted[-1], colour))
        ordered = overlap_by_shards(results, "overlap", "contiguous")
        _dots(axes, at, ordered, colour, "x")
    classes, n, _ = PAPER_SIZES
    counted = [expected_overlap(classes, n, m) for m in SHARDS]
    axes.plot(list(at.values()), counted, color=INK, linewidth=1.2, dashes=(5, 4))
    labels.append((f"{counted[-1]:.2f}  n={n:,}", counted[-1], INK))
    axes.set_ylim(0, 1.04)
    axes.annotate(
        "× classes cut in the order\nof their frequency", (0.02, 0.05), color=INK, fontsize=9,
        xycoords="axes fraction",
    )  # fmt: skip
    return labels


def _costs(axes: Axes, study: Study, ledger: Ledger) -> list[Label]:
    cells = study.experiment.cells
    counts = tuple(sorted({cell.num_shards for cell in cells}))
    at = _places(axes, counts)
    axes.axhline(0, color=FAINT, linewidth=1)
    labels = []
    sizes = sorted({cell.num_samples for cell in cells})
    for rule in ("top", "priority"):
        for n in sizes:
            colour = _paler(COLOURS[f"TAPAS {rule}"], PALE if n == sizes[0] else 0)
            mine = [c for c in cells if c.method == rule and c.num_samples == n and not c.moving]
            found = {c.num_shards: _cost(study, ledger, c) for c in mine if c.num_shards > 1}
            line = {1: Interval(0.0, 0.0, 0.0), **found}
            _dots(axes, at, line, colour, "o-")
            end = line[max(line)].mean
            labels.append((f"{end:+.1f}  {rule}, n={n:,}", end, colour))
    for cell in cells:
        if cell.moving:
            change = _cost(study, ledger, cell)
            _dots(axes, at, {cell.num_shards: change}, INK, "D")
            words = f"◆ {change.mean:+.1f}  top, n={cell.num_samples}, shards"
            axes.annotate(
                f"{words}\ndrawn anew in every step",
                (0.02, 0.05), color=INK, fontsize=9, xycoords="axes fraction",
            )  # fmt: skip
    return labels


def _cost(study: Study, ledger: Ledger, cell: Cell) -> Interval:
    change = change_by_shards(study, ledger, cell, "accuracy")
    return Interval(100 * change.mean, 100 * change.low, 100 * change.high)


def _loads(axes: Axes, study: Study, ledger: Ledger) -> list[Label]:
    at = _places(axes, IN_ORDER)
    n, results = max(one_shard(study, ledger, "top").items())
    axes.axhline(1, color=FAINT, linewidth=1)
    labels = []
    for kind, colour in (("random", COLOURS["TAPAS top"]), ("contiguous", COLOURS["full softmax"])):
        for name, words, style in (
            ("row_load", "moved", "o-"),
            ("pool_load", "scored", "o--"),
        ):
            found = overlap_by_shards(results, name, kind)
            shown = {m: found[m] for m in IN_ORDER if m in found}
            _dots(axes, at, shown, colour, style)
            end = shown[max(shown)].mean
            labels.append((f"{end:.2f}  {kind}, {words}", end, colour))
    axes.set_ylim(bottom=0)
    axes.annotate(
        f"n = {n:,}: rows scored and rows moved",
        (0.02, 0.05),
        color=INK,
        fontsize=9,
        xycoords="axes fraction",
    )
    return labels
