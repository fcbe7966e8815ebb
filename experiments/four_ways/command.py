"""`four-ways`: four ways to train one model, side by side, on a task made up on the spot."""

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from experiments.four_ways.training import (
    METHODS,
    FourWaysConfig,
    FourWaysResult,
    Progress,
    evaluation_steps,
    train_four_ways,
)
from experiments.synthetic.long_tail import LongTailConfig
from tapas.atomic_file import ResultsFolder
from tapas.cli.exit_codes import one_line_endings
from tapas.version import __version__

FEWEST_CLASSES = 200
BUSY = 0.5  # load for each core, before we add ours, that makes step times worthless
DEFAULTS = FourWaysConfig()


def four_ways(
    classes: Annotated[
        int,
        typer.Option(
            min=FEWEST_CLASSES,
            metavar="N",
            help="How many classes to tell apart. Time and memory grow with it, because the "
            "full softmax is one of the four.",
        ),
    ] = DEFAULTS.task.num_classes,
    steps: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help=f"Batches of {DEFAULTS.batch_size} to train on, each way."
        ),
    ] = DEFAULTS.steps,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Folder for figure.png and results.json; made if missing."
        ),
    ] = Path("four-ways"),
    seed: Annotated[
        int, typer.Option(metavar="N", help="Names the task, the first weights and every draw.")
    ] = DEFAULTS.seed,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print results.json instead of the table.")
    ] = False,
) -> None:
    """Train one small model four ways and compare them.

    The ways are sampled softmax, TAPAS with the paper's rule (top), TAPAS with this
    library's rule (priority), and the full softmax that looks at every class in every step.
    All start from the same weights and see the same batches.

    The task is synthetic: Zipf frequencies, a centroid for each class, noise. Its true
    distribution is known, so that the best score any model can reach (Bayes-optimal) is
    printed too. Scores are exact: held-out examples, ranked over all classes.

    You get a table, a figure and the numbers behind them. One run is one seed: try others
    before you believe a small difference.
    """
    with one_line_endings():
        # its remarks about font caches are not for people who asked for a comparison
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        from experiments.four_ways.figure import draw_four_ways

        folder = ResultsFolder(out)
        config = FourWaysConfig(task=LongTailConfig(num_classes=classes), steps=steps, seed=seed)
        load = _load_average()
        result = _train_with_bars(config)
        document = json.dumps(as_document(result, load), indent=2) + "\n"
        folder.write(
            {"figure.png": draw_four_ways(result), "results.json": document.encode("utf-8")}
        )
        if as_json:
            sys.stdout.write(document)
        else:
            print_report(result)
            if load is not None and load > BUSY * (os.cpu_count() or 1):
                typer.echo(
                    f"The machine was busy before this began (load average {load:.1f} on "
                    f"{os.cpu_count()} cores): do not trust these step times."
                )
        typer.echo(f"Wrote {out / 'figure.png'} and {out / 'results.json'}.", err=True)


def _train_with_bars(config: FourWaysConfig) -> FourWaysResult:
    """A bar for each way and one for the whole, on a terminal only."""
    bars = Bars(
        TextColumn("{task.description:<16}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        refresh_per_second=4,  # drawing shares the interpreter with the steps that are timed
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bars:
        return train_four_ways(config, on_progress=_mover(bars, config.steps))


def _mover(bars: Bars, steps: int) -> Callable[[Progress], None]:
    start = time.monotonic()
    tasks = {name: bars.add_task(name, total=steps, note=f"0/{steps}") for name in METHODS}
    whole = bars.add_task("all four", total=1.0, note="")
    latest: dict[str, Progress] = {}

    def move(progress: Progress) -> None:
        latest[progress.method] = progress
        rate = progress.step / progress.seconds
        note = f"{progress.step}/{steps}  {rate:.3g} steps/s"
        bars.update(tasks[progress.method], completed=progress.step, note=note)
        if len(latest) == len(METHODS):
            elapsed = time.monotonic() - start
            left = _seconds_left(list(latest.values()), steps, elapsed)
            minutes, seconds = divmod(round(left), 60)
            share = elapsed / (elapsed + left)
            bars.update(whole, completed=share, note=f"about {minutes}:{seconds:02} left")

    return move


def _seconds_left(latest: list[Progress], steps: int, elapsed: float) -> float:
    """Steps to come at the pace of their own method, and evaluations at the pace so far."""
    stepping = sum(p.seconds for p in latest)
    evaluations = [p.step >= stop for p in latest for stop in evaluation_steps(steps)]
    done = max(1, sum(evaluations))
    to_evaluate = (elapsed - stepping) * (len(evaluations) - done) / done
    return to_evaluate + sum(p.seconds / p.step * (steps - p.step) for p in latest)


def _load_average() -> float | None:
    """Processes that wanted a core in the last minute; None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def as_document(result: FourWaysResult, load_average: float | None) -> dict[str, Any]:
    """Everything that was asked, where it ran, and what came out: what results.json holds."""
    document = asdict(result)
    reference = result.methods[0].step_seconds
    for method, entry in zip(result.methods, document["methods"], strict=True):
        entry["step_seconds_ratio"] = method.step_seconds / reference
    return {
        "tapas_version": __version__,
        "num_seeds": 1,
        "load_average_before": load_average,
        "num_cores": os.cpu_count(),
        **document,
    }


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_report(result: FourWaysResult) -> None:
    """The table, under a line that says what was run and above the small print."""
    config = result.config
    pool = min(config.presample_factor * config.num_samples, config.task.num_classes)
    console = Console(highlight=False)
    console.print(
        f"{config.task.num_classes:,} classes, {_count(config.steps, 'step')} of "
        f"{config.batch_size} examples, one seed ({config.seed}), "
        f"{_count(result.num_threads, 'thread')}."
    )
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for heading in ("precision@1", "MAP@20", "step time", "vs sampled"):
        table.add_column(heading, justify="right")
    reference = result.methods[0].step_seconds
    for method in result.methods:
        table.add_row(
            method.name,
            f"{method.final.precision_at_1:.3f}",
            f"{method.final.map_at_20:.3f}",
            f"{1000 * method.step_seconds:.2f} ms",
            f"{method.step_seconds / reference:.1f}x",
        )
    table.add_section()
    bayes = result.bayes
    table.add_row("Bayes-optimal", f"{bayes.precision_at_1:.3f}", f"{bayes.map_at_20:.3f}")
    console.print(table)
    error = max(method.final.map_at_20_standard_error for method in result.methods)
    console.print(
        f"Sampled softmax draws n = {config.num_samples} classes for each batch; TAPAS draws "
        f"{pool:,} (r = {config.presample_factor}) and keeps "
        f"{config.num_samples}. Scores: {config.num_held_out:,} held-out examples ranked over "
        f"all classes; their choice alone makes MAP@20 uncertain by {error:.3f} (standard "
        "error). Step time: median of forward, backward and update. One seed: repeat with "
        "--seed before you believe a small difference."
    )
