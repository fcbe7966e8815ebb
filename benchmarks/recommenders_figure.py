"""The figure of the record of bench_recommenders.py: quality against seconds of training."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from tapas.comparison.figure_style import (
    COLOURS,
    FAINT,
    INK,
    add_title,
    as_png,
    blank_figure,
    label_ends_on_log,
    plain,
)

OURS, COUNTING = "tapas train", "counting: "
COLOUR = {OURS: COLOURS["TAPAS priority"]}
NAMES = {"ndcg@10": "NDCG@10", "map@20": "MAP@20"}


def ready(result: dict[str, Any]) -> float:
    """After how many seconds of its own a contender was done; a few more are forgiven."""
    told = result["told"]
    if told is None or told["epochs"] is not None:
        return float(result["seconds"])
    return float(told["fit_seconds"])


def draw_recommenders(record: dict[str, Any]) -> dict[str, bytes]:
    """PNG files by name."""
    results, metrics = record["results"], record["settings"]["metrics"]
    figure = blank_figure(13, 5.2)
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    figure.subplots_adjust(left=0.055, right=0.8, top=0.83, bottom=0.2, wspace=0.75)
    for axes, (log, found) in zip(panels, results.items(), strict=True):
        _panel(axes, log, found, metrics[log], record["settings"]["seconds"])
    add_title(
        figure,
        "Quality after the same time of training, two cores",
        "Test users, one judge for all. A lone dot is a method that needs no more time, at the "
        "left edge one that needs less; the broken line is the best way to count. Left out: what "
        "was not done in time, or needs too much memory.",
    )
    return {"recommenders.png": as_png(figure)}


def _panel(axes: Axes, log: str, found: dict[str, Any], metric: str, seconds: list[int]) -> None:
    plain(axes)
    axes.set(xscale="log", xlim=(seconds[0] / 12, seconds[-1] * 1.25))
    axes.set_xticks(seconds, [f"{each:,} s" for each in seconds])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3f}"))
    axes.set_title(f"{log}: {NAMES.get(metric, metric)}", loc="left", fontsize=10, color=INK)
    lines: dict[str, list[tuple[float, float]]] = {}
    for key, each in found.items():
        if "metrics" in each:
            value = float(each["metrics"][metric]["mean"])
            lines.setdefault(key.partition("|")[0], []).append((ready(each), value))
    counted = {name: line[0][1] for name, line in lines.items() if name.startswith(COUNTING)}
    labels = []
    if counted:
        best = max(counted, key=lambda name: counted[name])
        axes.axhline(counted[best], color=FAINT, linewidth=1.5, dashes=(4, 3))
        labels.append((best, counted[best], FAINT))
    for name, line in lines.items():
        if name in counted:
            continue
        colour = COLOUR.get(name, INK)
        x, y = zip(*sorted(line), strict=True)
        axes.plot(
            [max(each, axes.get_xlim()[0]) for each in x], y,
            color=colour, linewidth=2, marker="o", markersize=5, zorder=3, clip_on=False,
        )  # fmt: skip
        labels.append((name, y[-1], colour))
    axes.set_ylim(bottom=0)
    label_ends_on_log(axes, labels)
