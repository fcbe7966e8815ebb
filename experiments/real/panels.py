"""Single panels of the figures of the real sets, and the numbers they show."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from experiments.real.cells import SMALL_CELLS, SetCell
from experiments.real.evidence import SetEvidence
from tapas.comparison.figure_style import COLOURS, INK, label_ends, plain
from tapas.comparison.ledger import Result

Label = tuple[str, float, str]  # text, height, colour
Value = float | str
Sweep = Sequence[tuple[Value, float, float | None]]  # value of a setting, MAP@20, loss
NAMES = {
    "full": "full softmax",
    "sampled": "sampled softmax",
    "top": "TAPAS top",
    "priority": "TAPAS priority",
}


class Line(NamedTuple):
    """One cell over training steps: mean, lowest and highest of its seeds, P values each."""

    cell: SetCell
    steps: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    num_seeds: int

    @property
    def colour(self) -> str:
        return colour_of(self.cell)


def colour_of(cell: SetCell) -> str:
    return COLOURS[NAMES[cell.method]]


def lines_of(each: SetEvidence, cells: Iterable[SetCell], metric: str) -> list[Line]:
    """A line of "map@20" or "loss" for each of `cells` with a finished run.

    Its last value is on all test points, as in the tables; the others are on some of them.
    """
    lines = []
    for cell in cells:
        results = each.seeds(cell)
        if results:
            value = np.array(
                [[*(point[metric] for point in r["curve"][:-1]), r[metric]] for r in results]
            )  # (seeds, P)
            mean, low, high = value.mean(axis=0), value.min(axis=0), value.max(axis=0)
            steps = [point["step"] for point in results[0]["curve"]]
            parts = (mean.tolist(), low.tolist(), high.tolist())
            lines.append(Line(cell, steps, *parts, num_seeds=len(results)))
    return lines


def looked(each: SetEvidence) -> dict[SetCell, Result]:
    """For each cell with n samples the result of seed 0, which has looks into the run."""
    results = ((cell, result) for cell in SMALL_CELLS for result in each.results(cell))
    return {cell: result for cell, result in results if result.get("looks")}


def share_of_targets(results: Mapping[SetCell, Result]) -> float:
    """Share of tail and unseen classes among the targets of the test points."""
    buckets = next(iter(results.values()))["buckets"]
    total = sum(bucket["targets"] for bucket in buckets.values())
    return float((buckets["tail"]["targets"] + buckets["unseen"]["targets"]) / max(1, total))


def with_seeds(words: list[str], line: Line, most: int) -> str:
    """`words` in brackets, with the number of seeds if other lines of the figure have more."""
    if line.num_seeds < most:
        words = [*words, f"{line.num_seeds} seed{'s' if line.num_seeds > 1 else ''}"]
    return f" ({', '.join(words)})" if words else ""


def draw_line(axes: Axes, line: Line, *, cost: float = 1.0, dashed: bool = False) -> None:
    """The mean of `line` against steps times `cost`, with a band over its seeds."""
    x = [step * cost for step in line.steps]
    axes.plot(
        x, line.mean, color=line.colour, linewidth=1.3 if dashed else 1.8,
        linestyle=(0, (4, 2.5)) if dashed else "solid", zorder=2 if dashed else 3,
    )  # fmt: skip
    if line.num_seeds > 1:
        axes.fill_between(x, line.low, line.high, color=line.colour, alpha=0.16, linewidth=0)


def over_steps(
    axes: Axes,
    each: SetEvidence,
    lines: list[Line],
    references: list[Line],
    *,
    form: str,
    most: int,
) -> list[Label]:
    """Curves of one sample size, dashed for `references`. Returns the labels of their ends."""
    plain(axes)
    labels = []
    for line in (*lines, *references):
        draw_line(axes, line, dashed=line in references)
        name = NAMES[line.cell.method]
        if line in references and line.cell.method == "sampled":
            name = line.cell.words(each.real_set.num_samples)
        end = line.mean[-1]
        labels.append((f"{end:{form}}  {name}{with_seeds([], line, most)}", end, line.colour))
    _steps_below(axes, each.real_set.steps, "training steps")
    return labels


def over_time(axes: Axes, each: SetEvidence, lines: list[Line], *, most: int) -> None:
    """Curves against time; a dotted line leads from the end of each to its label."""
    plain(axes)
    n, labels = each.real_set.num_samples, []
    costs = {cell: pace.cost for cell, pace in each.paces.items()}
    right = max(line.steps[-1] * costs[line.cell] for line in lines)
    for line in lines:
        cell, cost, end = line.cell, costs[line.cell], line.mean[-1]
        draw_line(axes, line, cost=cost, dashed=cell.times > 1)
        x = line.steps[-1] * cost
        axes.plot([x], [end], marker="o", markersize=4, color=line.colour, clip_on=False)
        axes.hlines(end, x, right, color=line.colour, linewidth=0.7, linestyle="dotted")
        more = with_seeds([f"×{cost:.1f}"], line, most)
        text = f"{end:.4f}  {cell.method}, n={cell.num_samples(n):,}{more}"
        labels.append((text, end, line.colour))
    _steps_below(axes, right, f"time, in steps of sampled softmax with n={n:,}")
    label_ends(axes, labels)


def _steps_below(axes: Axes, last: float, words: str) -> None:
    axes.set_xlim(0, last)
    axes.set_xlabel(words)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def over_looks(
    axes: Axes,
    each: SetEvidence,
    results: Mapping[SetCell, Result],
    value: Callable[[Result], float],
    form: str,
    level: float | None = None,
) -> None:
    """`value` at every look into the run of each cell; dashed: `level`, that of the targets."""
    plain(axes)
    labels = []
    for cell, result in results.items():
        y = [value(look) for look in result["looks"]]
        steps = [look["step"] for look in result["looks"]]
        axes.plot(steps, y, color=colour_of(cell), linewidth=1.8)
        text = f"{y[-1]:{form}}  {cell.method}".replace("-", "−")  # as on the axis
        labels.append((text, y[-1], colour_of(cell)))
    if level is not None:
        axes.axhline(level, color=INK, linewidth=1.1, dashes=(5, 4))
        labels.append((f"{level:{form}}  targets", level, INK))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if form.endswith("%"):
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    _steps_below(axes, each.real_set.steps, "training steps")
    label_ends(axes, labels)


def recommended(axes: Axes, results: Mapping[SetCell, Result]) -> None:
    """Bars: share of tail and unseen classes in the recommendations; dashed: in the targets."""
    plain(axes)
    axes.grid(visible=False)
    level = share_of_targets(results)
    labels = [(f"{level:.2%}  targets", len(results), INK)]
    for place, (cell, result) in enumerate(results.items()):
        buckets = result["buckets"]
        share = buckets["tail"]["share"] + buckets["unseen"]["share"]
        axes.barh(place, share, height=0.55, color=colour_of(cell))
        labels.append((f"{share:.2%}  {cell.method}", place, colour_of(cell)))
    axes.axvline(level, color=INK, linewidth=1.1, dashes=(5, 4))
    for text, place, colour in labels:
        axes.annotate(
            text, (1, place), (8, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", va="center", fontsize=9.5, color=colour,
        )  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_ylim(len(results) + 0.4, -0.6)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(PercentFormatter(1))


def over_values(
    axes: Axes, values: Sequence[Value], y: Sequence[float], default: int | None = None
) -> None:
    """A dot for each value of a setting, filled at the index `default`.

    Numbers are on the x axis, which is logarithmic if they span more than a factor of ten; if any
    value is a word, all values are names on the y axis.
    """
    plain(axes)
    numbers = [value for value in values if not isinstance(value, str)]
    colours = [colour_of_value(value) for value in values]
    if len(numbers) < len(values):
        x, heights = list(y), [float(place) for place in range(len(values))]
        axes.set_yticks(heights, [_words(value) for value in values])
        axes.set_ylim(len(values) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(4))
    else:
        order = sorted(range(len(values)), key=numbers.__getitem__)
        x, heights = [numbers[i] for i in order], [y[i] for i in order]
        default = None if default is None else order.index(default)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        if x[0] > 0 and x[-1] > 10 * x[0]:
            axes.set_xscale("log")
            ticks = _apart(x, (x[-1] / x[0]) ** 0.1)
            axes.set_xticks(ticks, [_words(value) for value in ticks])
            axes.xaxis.set_minor_locator(NullLocator())
    if len(numbers) == len(values):
        axes.plot(x, heights, color=colours[0], linewidth=1.3)
    for place, colour in enumerate(colours):
        filled = place == default
        axes.plot(
            x[place], heights[place], "o", color=colour, markersize=7 if filled else 5,
            markerfacecolor=colour if filled else "white",
        )  # fmt: skip


def colour_of_value(value: Value) -> str:
    """The colour of the rule that `value` names; other settings are varied with priority."""
    method = next((name for name in NAMES if str(value).startswith(name)), "priority")
    return COLOURS[NAMES[method]]


def _apart(rising: Sequence[float], factor: float) -> list[float]:
    """Some of `rising`, each at least `factor` times the one before."""
    taken = [rising[0]]
    for value in rising[1:]:
        if value >= factor * taken[-1]:
            taken.append(value)
    return taken


def _words(value: Value) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value == round(value) else f"{value:.2g}"


def packed(widths: Sequence[int], most: int = 4) -> list[tuple[int, slice]]:
    """Band and columns for panels of these widths, left to right, `most` columns in a band.

    >>> packed([1, 2, 2, 1])
    [(0, slice(0, 1, None)), (0, slice(1, 3, None)), (1, slice(0, 2, None)), (1, slice(2, 3, None))]
    """
    band, column, places = 0, 0, []
    for width in widths:
        if column + width > most:
            band, column = band + 1, 0
        places.append((band, slice(column, column + width)))
        column += width
    return places


def has_words(sweep: Sweep) -> bool:
    return any(isinstance(value, str) for value, *_ in sweep)
