"""Small charts as SVG: lines, intervals and shares, for pages that are one file.

Colours are classes of `STYLE`, so that a page decides on light or dark. Texts are escaped.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tapas.escapes import printable

STYLE = """
:root { --c0: #b5224f; --c1: #2b7a78; --c2: #c8791b; --c3: #3b5ba5; --c4: #7a7a7a; --mix: #000 0% }
@media screen and (prefers-color-scheme: dark) {
  :root { --c0: #f0739a; --c1: #5cbdb9; --c2: #e5a45a; --c3: #8fa9ea; --c4: #a0a0a0;
          --mix: #fff 40% }
}
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr));
          gap: 1rem 2rem; margin: 1rem 0 }
.charts figure { margin: 0; max-width: 32rem; break-inside: avoid }
.charts figcaption { font-weight: 600; margin-bottom: .4rem }
svg.chart { width: 100%; height: auto; font: 13px system-ui, sans-serif; display: block;
            overflow: visible }
svg.chart text { fill: var(--text) } svg.chart .faint { fill: var(--faint) }
svg.chart .inside { fill: var(--page) }
svg.chart .grid { stroke: var(--line) }
svg.chart .mark { stroke: var(--text); stroke-dasharray: 3 3 }
svg.chart .dashed { stroke-dasharray: 2 4 }
svg.chart .s0 { stroke: var(--c0) } svg.chart .f0 { fill: var(--c0) }
svg.chart .s1 { stroke: var(--c1) } svg.chart .f1 { fill: var(--c1) }
svg.chart .s2 { stroke: var(--c2) } svg.chart .f2 { fill: var(--c2) }
svg.chart .s3 { stroke: var(--c3) } svg.chart .f3 { fill: var(--c3) }
svg.chart .s4 { stroke: var(--c4) } svg.chart .f4 { fill: var(--c4) }
svg.chart .s-own { stroke: color-mix(in srgb, var(--own), var(--mix)) }
svg.chart .f-own { fill: color-mix(in srgb, var(--own), var(--mix)) }
"""
WIDTH, HEIGHT = 440, 230
LETTER = 7.6  # width of a letter of a wide font, on average
LINE = 16  # height of a line of text
NUM_COLOURS = 5
GREY = 4  # of the colours
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """A curve through `points`; those that are not finite are left out.

    `colour` is a hexadecimal one, by default the next of the page's. `quiet` lines are thin and
    grey; they are named only if they are `dashed`, too, as levels to compare with.
    """

    name: str
    points: Sequence[Point]
    colour: str = ""
    quiet: bool = False
    dashed: bool = False
    band: Sequence[tuple[float, float]] = ()  # lowest and highest value at each point


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval, which may be infinite; what is `marked` has another colour."""

    name: str
    mean: float
    low: float
    high: float
    marked: bool = False


def ticks(low: float, high: float, number: int = 4) -> list[float]:
    """Round numbers from at most `low` to at least `high`, `number` steps or a few more.

    >>> ticks(0.0, 0.079), ticks(5.0, 5.0)
    ([0.0, 0.02, 0.04, 0.06, 0.08], [4.0, 5.0, 6.0])
    """
    if high <= low:
        width = max(1.0, abs(low) * 1e-3)
        low, high, number = low - width, low + width, 2
    raw = (high - low) / number
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def short(number: float) -> str:
    """
    >>> short(1200.0), short(0.05), short(12.5), short(3_400_000.0), short(2e30)
    ('1,200', '0.05', '12.5', '3.4M', '2e+30')
    """
    if number and not 1e-4 <= abs(number) < 1e10:
        return f"{number:g}"
    return f"{number / 1e6:,g}M" if abs(number) >= 1e6 else f"{number:,.7g}"


def spread(values: Sequence[float], gap: float) -> list[float]:
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


def moved_inside(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """`places` moved between `low` and `high`, still `gap` apart and in order.

    >>> moved_inside([-0.5, 0.5, 1.25], 0.25, 0.0, 1.0)
    [0.0, 0.5, 1.0]
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    found, least, most = list(places), low, high
    for index in order:
        found[index] = least = max(found[index], least)
        least += gap
    for index in reversed(order):
        found[index] = most = min(found[index], most)
        most -= gap
    return found


def line_chart(
    lines: Sequence[Line],
    *,
    x: str,
    title: str,
    mark: tuple[float, str] | None = None,
    from_zero: bool = False,
) -> str:
    """Curves with their names at their ends; `mark` is a place on the x axis and its name.

    `from_zero` has 0 on the y axis.
    """
    curves = [_Curve.of(line, number) for number, line in enumerate(lines)]
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return _nothing(title)
    named = [curve for curve in curves if curve.line.dashed or not curve.line.quiet]
    xs = [p[0] for curve in curves for p in curve.points]
    ys = [p[1] for curve in curves for p in curve.points]
    ys += [end for curve in curves for ends in curve.band for end in ends]
    y_ticks = ticks(min(ys + [0.0] * from_zero), max(ys))
    left = max(len(short(tick)) for tick in y_ticks) * LETTER + 8
    right = min(0.5 * WIDTH, max((len(c.line.name) for c in named), default=0) * LETTER + 28)
    top, bottom = 2.0 * LINE if mark else 0.5 * LINE, 2.4 * LINE
    height = max(HEIGHT, top + bottom + LINE * len(named))
    x_low, x_high = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1

    def across(value: float) -> float:
        return left + (value - x_low) / (x_high - x_low) * (WIDTH - left - right)

    def down(value: float) -> float:
        share = (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return height - bottom - share * (height - top - bottom)

    parts = []
    for tick in y_ticks:
        parts.append(_rule(left, down(tick), WIDTH - right, down(tick), "grid"))
        parts.append(_text(left - 6, down(tick) + 4, short(tick), "faint", anchor="end"))
    x_ticks = ticks(x_low, x_high, 5) if max(xs) > min(xs) else [x_low]
    parts += [
        _text(across(tick), height - bottom + LINE, short(tick), "faint", anchor="middle")
        for tick in x_ticks
        if x_low <= tick <= x_high
    ]
    parts.append(_text(WIDTH - right, height - 3, x, "faint", anchor="end"))
    if mark is not None and x_low <= mark[0] <= x_high:
        place = across(mark[0])
        parts.append(_rule(place, top - 6, place, height - bottom, "mark"))
        anchor = "end" if place > (left + WIDTH - right) / 2 else "start"
        parts.append(_text(place, LINE - 3, mark[1], anchor=anchor))
    for curve in sorted(curves, key=lambda curve: not curve.line.quiet):
        parts += curve.drawn(across, down)
    ends = [down(curve.points[-1][1]) for curve in named]
    labels = moved_inside(spread(ends, LINE), LINE, 0.5 * LINE, height - bottom)
    for curve, end, label in zip(named, ends, labels, strict=True):
        if abs(end - label) > 3:
            end_x = across(curve.points[-1][0])
            parts.append(_rule(end_x + 4, end, WIDTH - right + 14, label, "grid"))
        words = _cut(curve.line.name, right - 16)
        kind = "faint" if curve.line.quiet else f"f{curve.colour}"
        parts.append(
            _text(WIDTH - right + 16, label + 4, words, kind, whole=curve.line.name, **curve.own)
        )
    return _svg(title, height, parts)


@dataclass(frozen=True, slots=True)
class _Curve:
    """A line with its finite points only."""

    line: Line
    points: list[Point]
    band: list[tuple[float, float]]
    colour: str  # the end of the names of its classes

    @classmethod
    def of(cls, line: Line, number: int) -> "_Curve":
        finite = [i for i, point in enumerate(line.points) if all(map(math.isfinite, point))]
        colour = str(number % NUM_COLOURS)
        if line.quiet:
            colour = str(GREY)
        elif line.colour:
            colour = "-own"
        band = [line.band[i] for i in finite] if line.band else []
        return cls(line, [line.points[i] for i in finite], band, colour)

    @property
    def own(self) -> dict[str, str]:
        return {"own": self.line.colour} if self.colour == "-own" else {}

    def drawn(self, across: Callable[[float], float], down: Callable[[float], float]) -> list[str]:
        parts = []
        style = f" style='--own: {self.line.colour}'" if self.own else ""
        if self.band:
            lows = [(x, low) for (x, _), (low, _) in zip(self.points, self.band, strict=True)]
            highs = [(x, high) for (x, _), (_, high) in zip(self.points, self.band, strict=True)]
            edge = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in (*lows, *highs[::-1]))
            parts.append(f"<polygon points='{edge}' opacity='.14' class='f{self.colour}'{style}/>")
        path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in self.points)
        kind = f"s{self.colour}" + (" dashed" if self.line.dashed else "")
        look = "stroke-width='2'"
        if self.line.quiet:
            look = "stroke-width='1'" if self.line.dashed else "stroke-width='1' opacity='.5'"
        parts.append(f"<polyline points='{path}' fill='none' {look} class='{kind}'{style}/>")
        if not self.line.dashed:
            x, y = self.points[-1]
            radius = 2 if self.line.quiet else 3.5
            parts.append(
                f"<circle cx='{across(x):.1f}' cy='{down(y):.1f}' r='{radius}' "
                f"class='f{self.colour}'{style}/>"
            )
        return parts


def interval_chart(estimates: Sequence[Estimate], *, title: str, digits: int = 4) -> str:
    """A row for each estimate: a dot, its interval as a bar, and the number."""
    ends = [end for one in estimates for end in (one.low, one.mean, one.high) if math.isfinite(end)]
    if not ends:
        return _nothing(title)
    x_ticks = ticks(min(0.0, *ends), max(0.0, *ends), 3)
    left = min(0.52 * WIDTH, max(len(one.name) for one in estimates) * LETTER + 10)
    right = (digits + 3) * LETTER + 10
    row, bottom = 1.7 * LINE, 1.6 * LINE
    height = row * len(estimates) + bottom

    def across(value: float) -> float:
        share = (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        return left + min(1.0, max(0.0, share)) * (WIDTH - left - right)

    parts = []
    for tick in x_ticks:
        parts.append(_rule(across(tick), 0, across(tick), height - bottom, "grid"))
        parts.append(_text(across(tick), height - 6, short(tick), "faint", anchor="middle"))
    for number, one in enumerate(estimates):
        y, colour = row * (number + 0.5), 0 if one.marked else GREY
        words = _cut(one.name, left - 8)
        parts.append(_text(0, y + 4, words, "f0" if one.marked else "", whole=one.name))
        if not math.isfinite(one.mean):
            continue
        if math.isfinite(one.low) and math.isfinite(one.high):
            parts.append(
                f"<line x1='{across(one.low):.1f}' y1='{y:.1f}' x2='{across(one.high):.1f}' "
                f"y2='{y:.1f}' stroke-width='3' stroke-linecap='round' class='s{colour}'/>"
            )
        parts.append(
            f"<circle cx='{across(one.mean):.1f}' cy='{y:.1f}' r='4.5' class='f{colour}'/>"
        )
        parts.append(_text(WIDTH, y + 4, f"{one.mean:.{digits}f}", anchor="end"))
    return _svg(title, height, parts)


def share_chart(rows: Mapping[str, Mapping[str, float]], *, title: str) -> str:
    """A bar for each row, divided by the shares of its parts; parts have the same names in all."""
    names = list(dict.fromkeys(name for shares in rows.values() for name in shares))
    left = min(0.4 * WIDTH, max(map(len, rows), default=0) * LETTER + 10)
    row = 1.9 * LINE
    percents = {
        title: {name: 100 * share / (sum(shares.values()) or 1) for name, share in shares.items()}
        for title, shares in rows.items()
    }
    parts = []
    for number, (row_title, shares) in enumerate(percents.items()):
        y, at = row * number, left
        parts.append(_text(0, y + 0.62 * row, _cut(row_title, left - 8), whole=row_title))
        for colour, name in enumerate(names):
            percent = shares.get(name, 0.0)
            width = percent / 100 * (WIDTH - left)
            if width <= 0:
                continue
            parts.append(
                f"<rect x='{at:.1f}' y='{y + 0.12 * row:.1f}' width='{width:.1f}' "
                f"height='{0.76 * row:.1f}' class='f{colour % NUM_COLOURS}'/>"
            )
            if width > 6 * LETTER:
                parts.append(_text(at + 6, y + 0.62 * row, f"{percent:.0f} %", "inside"))
            at += width
    y = row * len(rows) + LINE
    for colour, name in enumerate(names):
        each = ", ".join(
            f"{shares.get(name, 0.0):.0f} % of {of}" for of, shares in percents.items()
        )
        parts.append(
            f"<rect x='0' y='{y - 10:.1f}' width='11' height='11' class='f{colour % NUM_COLOURS}'/>"
        )
        parts.append(_text(18, y, f"{name}: {each}"))
        y += 1.2 * LINE
    return _svg(title, y - 0.7 * LINE, parts)


def _nothing(title: str) -> str:
    return _svg(title, LINE * 2, [_text(0, LINE, "nothing to show yet", "faint")])


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    label = _plain(title)
    return (
        f"<svg class='chart' role='img' aria-label='{label}' viewBox='0 0 {WIDTH} {height:.0f}'>"
        f"{''.join(parts)}</svg>"
    )


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' class='{kind}'/>"


def _text(
    x: float,
    y: float,
    words: str,
    kind: str = "",
    *,
    anchor: str = "start",
    whole: str = "",
    own: str = "",
) -> str:
    """`whole`, if it is longer than `words`, is shown by a pointer that rests on them."""
    style = f" class='{kind}'" if kind else ""
    style += f" style='--own: {own}'" if own else ""
    tip = f"<title>{_plain(whole)}</title>" if whole not in ("", words) else ""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'{style}>{_plain(words)}{tip}</text>"
    )


def _cut(words: str, width: float) -> str:
    """`words`, shortened to about `width`."""
    most = max(4, int(width / LETTER))
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _plain(words: str) -> str:
    return escape(printable(words), quote=True)
