"""The style of all figures: direct labels, one colour for each method, grey for baselines."""

import io
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tapas.charts import spread

COLOURS = {  # one colour for each method; grey is the baseline that needs no sampling
    "sampled softmax": "#c8791b",
    "TAPAS top": "#2b7a78",
    "TAPAS priority": "#b5224f",
    "full softmax": "#7a7a7a",
}
INK = "#333333"
FAINT = "#999999"
NOTE = "#666666"


def blank_figure(width: float, height: float, *, dpi: int = 150) -> Figure:
    """An empty figure, `width` by `height` inches, that needs no screen."""
    figure = Figure(figsize=(width, height), dpi=dpi, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def as_png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def plain(axes: Axes) -> None:
    """No box, faint axes, a faint grid behind the data."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=INK, which="both", labelsize=9, color=FAINT)
    axes.grid(axis="y", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.label.set(color=INK, fontsize=10)


def label_ends(
    axes: Axes, labels: list[tuple[str, float, str]], *, fontsize: float = 9.5, gap: float = 0.05
) -> None:
    """Texts (text, height, colour) at the right edge, beside the ends of their lines.

    Labels are at least `gap` of the panel's height apart.
    """
    bottom, top = axes.get_ylim()
    left, right = axes.get_xlim()
    places = spread([height for _, height, _ in labels], gap * (top - bottom))
    for (text, height, colour), place in zip(labels, places, strict=True):
        axes.annotate(
            text,
            (right, height),
            (right + 0.05 * (right - left), place),
            color=colour,
            va="center",
            fontsize=fontsize,
            annotation_clip=False,
            parse_math=False,
            arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.7,
                "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0,
            },
        )  # fmt: skip


def label_ends_on_log(
    axes: Axes, labels: list[tuple[str, float, str]], *, fontsize: float = 9.5, gap: float = 0.05
) -> None:
    """`label_ends` beside a logarithmic x axis: on a twin with a linear one."""
    twin = axes.twiny()
    twin.set_xlim(0, 1)
    twin.set_xticks([])
    for side in twin.spines.values():
        side.set_visible(False)
    label_ends(twin, labels, fontsize=fontsize, gap=gap)


def add_title(figure: Figure, title: str, note: str) -> None:
    """A title above all panels, a note below."""
    width, height = figure.get_figwidth(), figure.get_figheight()
    left = 0.2 / width
    figure.text(left, 1 - 0.28 / height, title, fontsize=14, color=INK, va="center", weight="bold")
    note = wrap(note, width, 8.5)
    figure.text(left, 0.1 / height, note, fontsize=8.5, color=NOTE, va="bottom")


def wrap(text: str, width: float, fontsize: float) -> str:
    """`text` in lines that fit into `width` inches."""
    return fill(text, round(127 * width / fontsize))
