"""Figures of the real sets, drawn from the ledgers. Nothing is trained here.

Cells without results are left out; if no cell has any, a DataError is raised.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import FuncFormatter, NullLocator

from experiments.real.cells import (
    CELLS,
    FULL,
    PRIORITY,
    PRIORITY_8,
    SAMPLED,
    SAMPLED_8,
    SAMPLED_64,
    TOP,
    TOP_8,
    SetCell,
)
from experiments.real.evidence import SetEvidence
from experiments.real.panels import (
    NAMES,
    Label,
    Sweep,
    Value,
    colour_of,
    has_words,
    lines_of,
    looked,
    over_looks,
    over_steps,
    over_time,
    over_values,
    packed,
    recommended,
    share_of_targets,
)
from tapas.comparison.figure_style import (
    INK,
    add_title,
    blank_figure,
    label_ends,
    label_ends_on_log,
    plain,
)
from tapas.comparison.ledger import Result
from tapas.errors import DataError

PANELS = (  # for n and for 8 n: cells, and references, which are dashed
    ((SAMPLED, TOP, PRIORITY), (SAMPLED_8, FULL)),
    ((SAMPLED_8, TOP_8, PRIORITY_8), (SAMPLED_64, FULL)),
)
DRAWN = tuple(dict.fromkeys(chain.from_iterable(chain.from_iterable(PANELS))))
TIMED = (SAMPLED, TOP, PRIORITY, SAMPLED_8, PRIORITY_8)
WORDS = {  # title, format, command
    "map@20": ("Figure 3: MAP@20", ".4f", "figure-3"),
    "loss": ("Figure 4: full softmax loss", ".3f", "figure-4"),
}
LEFT, BELOW = 0.75, 1.0  # inches around the panels
SOME = "The end of a line is on all test points, the rest on some of them."


def steps_figure(sets: Sequence[SetEvidence], metric: str) -> Figure:
    """ "map@20" or "loss" over steps: a row for each set, n at the left, 8 n at the right."""
    title, form, command = WORDS[metric]
    seeds = [[line.num_seeds for line in lines_of(each, DRAWN, metric)] for each in sets]
    drawn = [each for each, some in zip(sets, seeds, strict=True) if some]
    if not drawn:
        raise nothing_to_draw(sets)
    most = max(chain.from_iterable(seeds))
    figure, grid = blank_grid(len(drawn), 2, width=4.4, height=2.9, beside=3.2)
    for row, each in enumerate(drawn):
        shown: list[tuple[Axes, list[Label]]] = []
        for column, (cells, against) in enumerate(PANELS):
            lines = lines_of(each, cells, metric)
            references = lines_of(each, against, metric)
            if lines or references:
                axes = figure.add_subplot(grid[row, column], sharey=shown[0][0] if shown else None)
                words = describe_set(each, cells[0].times, with_classes=True)
                axes.set_title(words, loc="left", fontsize=11, color=INK)
                labels = over_steps(axes, each, lines, references, form=form, most=most)
                shown.append((axes, labels))
        for axes, labels in shown:  # after all lines, since the panels share a y axis
            label_ends(axes, labels)
    note = (
        "TAPAS keeps n of 8 n candidates; dashed: more samples. Settings chosen on validation "
        f"points. {SOME} {describe_spread(most)}{describe_diverged(drawn, DRAWN)} "
        f"`python -m experiments {command}`"
    )
    add_title(figure, f"{title} on the test points", note)
    return figure


def time_figure(sets: Sequence[SetEvidence]) -> Figure:
    """MAP@20 against time, in steps of sampled softmax with n: a panel for each set."""
    drawn = []
    for each in sets:
        lines = lines_of(each, [cell for cell in TIMED if cell in each.paces], "map@20")
        if lines:
            drawn.append((each, lines))
    if not drawn:
        raise nothing_to_draw(sets, "results with a measured cost")
    most = max(line.num_seeds for _, lines in drawn for line in lines)
    columns = min(2, len(drawn))
    figure, grid = blank_grid(-(-len(drawn) // columns), columns, width=4.4, height=3, beside=3.6)
    for place, (each, lines) in enumerate(drawn):
        axes = figure.add_subplot(grid[divmod(place, columns)])
        axes.set_title(describe_set(each), loc="left", fontsize=11, color=INK)
        over_time(axes, each, lines, most=most)
    diverged = describe_diverged([each for each, _ in drawn], TIMED)
    note = (
        "Time: steps, times the measured cost of one (×), that of sampled softmax with n being 1; "
        f"dashed: 8 n. {SOME} {describe_spread(most)}{diverged} `python -m experiments figure-3`"
    )
    add_title(figure, "MAP@20 on the test points against time", note)
    return figure


def _rare(look: Result) -> float:
    return float(look["mass of tail"] + look["mass of unseen"])


LOOKS: dict[str, tuple[str, Callable[[Result], float]]] = {  # title: format, value
    "mass on tail and unseen": (".1%", _rare),
    "mean log-probability of tail": (".2f", lambda look: float(look["log-probability of tail"])),
    "cosine to the exact gradient": (".3f", lambda look: float(look["gradient_cosine"])),
    "kept, of the n highest": (".1%", lambda look: float(look["top_coverage"])),
}


def tail_figure(sets: Sequence[SetEvidence]) -> Figure:
    """Rare classes during a run: a row for each set."""
    rows = [(each, results) for each in sets if (results := looked(each))]
    if not rows:
        raise nothing_to_draw(sets, "looks into a run of seed 0")
    columns = len(LOOKS) + 1
    figure, grid = blank_grid(
        len(rows), columns, width=2.5, height=2.9, beside=1.95, apart=1.35, above=1.3
    )
    for row, (each, results) in enumerate(rows):
        panels = [figure.add_subplot(grid[row, column]) for column in range(columns)]
        for axes, title in zip(panels, (*LOOKS, "recommended: tail and unseen"), strict=True):
            axes.set_title(title, loc="left", fontsize=10, color=INK)
        for axes, (form, value) in zip(panels, LOOKS.values(), strict=False):
            level = share_of_targets(results) if value is _rare else None
            over_looks(axes, each, results, value, form, level)
        recommended(panels[-1], results)
        panels[0].annotate(
            describe_set(each), (0, 1), (0, 26), xycoords="axes fraction",
            textcoords="offset points", fontsize=11, color=INK, weight="bold",
        )  # fmt: skip
    note = (
        "Seed 0. Tail: the rarest classes, with the last tenth of the training events; unseen: "
        "without any. Lines: at 128 validation points; targets and recommendations: at the test "
        "points. `python -m experiments figure-4`"
    )
    add_title(figure, "Rare classes along a run", note)
    return figure


def sweeps_figure(
    sweeps: Mapping[str, Sweep], title: str, defaults: Mapping[str, Value] | None = None
) -> Figure:
    """MAP@20, and the loss if known, against each swept setting; its default is filled."""
    drawn = {setting: sweep for setting, sweep in sweeps.items() if sweep}
    if not drawn:
        raise nothing_to_draw([], "sweeps")
    metrics = ["MAP@20", "full softmax loss"]
    if all(loss is None for sweep in drawn.values() for *_, loss in sweep):
        metrics.pop()
    places = packed([2 if has_words(sweep) else 1 for sweep in drawn.values()])
    rows = len(metrics) * (places[-1][0] + 1)
    columns = max(spot.stop for _, spot in places)
    figure, grid = blank_grid(rows, columns, width=2.6, height=2.1, beside=0.8)
    for row, metric in enumerate(metrics):
        first: Axes | None = None  # panel with numbers; all of these share a y axis
        for (band, spot), (setting, sweep) in zip(places, drawn.items(), strict=True):
            scored = ((value, loss if row else quality) for value, quality, loss in sweep)
            points = [(value, score) for value, score in scored if score is not None]
            if not points:
                continue
            named = has_words(sweep)
            place = grid[band * len(metrics) + row, spot]
            axes = figure.add_subplot(place, sharey=None if named else first)
            if named:  # the names need room at the left
                box, room = axes.get_position(), 2.2 / figure.get_figwidth()
                axes.set_position((box.x0 + room, box.y0, box.width - room, box.height))
            else:
                first = first or axes
            axes.set_title(f"{setting}: {metric}", loc="left", fontsize=10, color=INK)
            values, scores = zip(*points, strict=True)
            marked = (defaults or {}).get(setting)
            over_values(axes, values, scores, values.index(marked) if marked in values else None)
    note = (
        "Filled: the default, at which the other settings stay. All settings but the rule are "
        "varied with priority. Validation points, one seed."
    )
    add_title(figure, title, note)
    return figure


def describe_set(each: SetEvidence, times: float = 1, *, with_classes: bool = False) -> str:
    """Set, number of classes and n."""
    mine = each.real_set
    classes = f", {mine.num_classes:,} classes" if with_classes else ""
    return f"{mine.title}{classes}, n={round(times * mine.num_samples):,}"


def describe_spread(most: int) -> str:
    return f"Mean of {most} seeds, bands from lowest to highest." if most > 1 else "One seed."


def describe_diverged(sets: Sequence[SetEvidence], cells: Iterable[SetCell]) -> str:
    """A sentence on diverged seeds, which are not drawn; empty without any."""
    parts = []
    for each in sets:
        for cell in cells:
            results = each.results(cell)
            lost = sum("diverged" in result for result in results)
            if lost:
                words = cell.words(each.real_set.num_samples)
                parts.append(f"{lost} of {len(results)} seeds of '{words}' on {each.name}")
    return f" Diverged, hence not drawn: {'; '.join(parts)}." if parts else ""


def nothing_to_draw(sets: Sequence[SetEvidence], what: str = "results") -> DataError:
    names = f" for {', '.join(each.name for each in sets)}" if sets else ""
    return DataError(
        f"there is nothing to draw: no {what}{names}. `python -m experiments figure-3` runs "
        "what is missing."
    )


def blank_grid(
    rows: int,
    columns: int,
    *,
    width: float,
    height: float,
    beside: float,
    apart: float = 0.9,
    above: float = 0.95,
) -> tuple[Figure, GridSpec]:
    """Panels of `width` by `height` inches, `apart` vertically, each with `beside` for labels."""
    total_width = LEFT + columns * (width + beside)
    total_height = above + rows * height + (rows - 1) * apart + BELOW
    figure = blank_figure(total_width, total_height)
    grid = figure.add_gridspec(
        rows, columns, left=LEFT / total_width, right=1 - beside / total_width,
        top=1 - above / total_height, bottom=BELOW / total_height, wspace=beside / width,
        hspace=apart / height,
    )  # fmt: skip
    return figure, grid


COLUMNS = 2
METHODS = ("sampled", "top", "priority")


def sizes_figure(sets: Sequence[SetEvidence]) -> Figure:
    """MAP@20 against n: a panel for each set, with intervals over users and seeds."""
    drawn = [each for each in sets if each.has(SAMPLED)]
    if not drawn:
        raise nothing_to_draw(sets)
    rows = -(-len(drawn) // COLUMNS)
    figure, grid = blank_grid(rows, COLUMNS, width=4.2, height=2.7, beside=2.4)
    for place, each in enumerate(drawn):
        axes = figure.add_subplot(grid[place // COLUMNS, place % COLUMNS])
        mine = each.real_set
        title = f"{mine.title}, {mine.num_classes:,} classes"
        axes.set_title(title, loc="left", fontsize=11, color=INK)
        _against_samples(axes, each)
    note = (
        "At the end of a run, test points; intervals of 95 % over users and seeds. TAPAS keeps n "
        "of 8 n candidates. Settings chosen on validation points. `python -m experiments figure-3`"
    )
    add_title(figure, "MAP@20 against the number of samples in the loss", note)
    return figure


def _against_samples(axes: Axes, each: SetEvidence) -> None:
    plain(axes)
    labels, sizes = [], set()
    n = each.real_set.num_samples
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
