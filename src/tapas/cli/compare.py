"""`tapas compare`: every method on one log, in equal time, and which one to use."""

import json
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapas.atomic_file import OutputFolder
from tapas.cli.exit_codes import report_errors
from tapas.cli.options import (
    AsJson,
    Cache,
    Files,
    Group,
    Item,
    Layer,
    MinCount,
    Rare,
    SkipBadRows,
    Text,
    Time,
    User,
    cache_folder,
    parse_settings,
    source_table,
)
from tapas.cli.progress import run_progress
from tapas.cli.terminal import print_table, status
from tapas.comparison.config import CompareConfig, parse_duration, quick, synthetic
from tapas.comparison.contenders import CONTENDERS, pick_contenders
from tapas.comparison.settings import duration
from tapas.errors import UsageError
from tapas.heads import METHODS
from tapas.training.config import JSON, build_config

if TYPE_CHECKING:
    from tapas.comparison.results import Comparison


SETTABLE = ("split", "model", "optimizer")


def build_comparison(
    log: dict[str, JSON], made_up: bool, is_quick: bool, given: dict[str, Any], layer: Layer
) -> CompareConfig:
    """The comparison that was asked for; what is wrong is told before any work."""
    if (made_up or is_quick) and log:
        raise UsageError(
            f"{'--synthetic' if made_up else '--quick'} makes a log of its own: leave out LOG and "
            "the options that say how to read it."
        )
    if not (made_up or is_quick or log.get("files")):
        raise UsageError(
            "no log given. Try `tapas compare purchases.parquet --budget 1m`, or --synthetic."
        )
    _check_settable(layer)
    if is_quick:
        base = quick()
    elif made_up:
        base = synthetic()
    else:
        base = None
    start: Layer = {"log": log or {"files": ["made-up"]}}
    if base is not None:
        start["model"] = _table(base.model)
        start["split"] = {"kind": base.split.kind}  # how much is held out follows from it
        start["loop"] = {"batch": base.batch}
    built = build_config(start, layer)
    given |= {name: getattr(built, name) for name in SETTABLE} | {"batch": built.loop.batch}
    if is_quick:
        return quick(**given)
    return synthetic(**given) if made_up else CompareConfig(log=built.log, **given)


def _table(section: Any) -> dict[str, JSON]:
    return {name: value for name, value in asdict(section).items() if value is not None}


def _check_settable(layer: Layer) -> None:
    for section, table in layer.items():
        for name in table:
            if section == "head":
                raise UsageError(
                    f"--set head.{name}: what a method is tried with is fixed in advance, see "
                    "`tapas compare --list`. Use --methods and --num-samples."
                )
            if (section, name) == ("optimizer", "rows_lr"):
                raise UsageError("optimizer.rows_lr is searched for every method. Leave it out.")
            if section not in SETTABLE and (section, name) != ("loop", "batch"):
                raise UsageError(
                    f"--set {section}.{name} has no place in a comparison. Known: loop.batch and "
                    f"the names of {', '.join(SETTABLE)}."
                )


WORKERS = min(2, os.cpu_count() or 1)  # each holds a model, and judges it over all classes


def compare(
    files: Files = None,
    made_up: Annotated[
        bool,
        typer.Option("--synthetic", help="The built-in log, whose true distribution is known."),
    ] = False,
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Some of --list, with commas, or all. Default: all."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Training time of each method in all, such as 90s, 10m or 1h. Default: 10m.",
        ),
    ] = None,
    num_samples: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="n of all that sample. Default: 1,000, or an eighth of few classes."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Final runs of each method. Default: 3.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(metavar="N", help="Settings tried for each method. Default: 4.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where results are kept, and found again.")
    ] = Path("compare"),
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Runs side by side, one thread each.")
    ] = WORKERS,
    user: User = None,
    item: Item = None,
    time: Time = None,
    text: Text = None,
    group: Group = None,
    min_count: MinCount = None,
    rare: Rare = None,
    skip_bad_rows: SkipBadRows = False,
    cache: Cache = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.NAME=VALUE",
            help="A setting of all methods: of model, split or optimizer, or loop.batch.",
        ),
    ] = None,
    seconds_only: Annotated[
        bool,
        typer.Option("--quick", help="A small made-up log and a second each: to see the report."),
    ] = False,
    draw: Annotated[
        bool, typer.Option("--draw", help="Only write the report, from the results in --out.")
    ] = False,
    show_list: Annotated[
        bool, typer.Option("--list", help="Print the methods, and what is tuned, and stop.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare every method on one log, in equal time, and say which to use.

    All share log, split, encoder, batches, optimizers and n. Half of --budget goes to a search
    of the same number of trials, judged on validation points; half to the final runs, judged on
    test points. Times are steps at the pace that a method has alone on the machine, so that
    runs may go side by side.

    You get a table and a rule here, and README.md, report.html and a figure in --out. Stop it
    at any moment: the same command goes on.
    """
    with report_errors():
        if show_list:
            _print_contenders(as_json)
            return
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        if not draw:
            log = source_table(files, user, item, time, text, group, min_count, rare, skip_bad_rows)
            given: dict[str, Any] = {
                "budget_seconds": None if budget is None else parse_duration(budget),
                "samples": num_samples,
                "seeds": seeds,
                "trials": trials,
                "contenders": None if methods is None else pick_contenders(methods),
            }
            given = {name: value for name, value in given.items() if value is not None}
            config = build_comparison(
                log, made_up, seconds_only, given, parse_settings(settings or [])
            )
            if config.log is not None:
                config.log.paths()  # a file that is missing is told before a folder is made
            OutputFolder(out)
            _compare(config, out, cache_folder(cache), workers)
        _report(out, as_json)


def _print_contenders(as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for each in CONTENDERS.values():
        tuned = ["rows_lr"]
        if each.knob is not None:
            tuned.append(f"{each.knob} ({', '.join(f'{value:g}' for value in each.values)})")
        kind = each.kind
        rows.append({"name": each.name, "title": each.title, "paper": kind.paper, "tuned": tuned,
                     "options": list(kind.options)})  # fmt: skip
    if as_json:
        typer.echo(json.dumps({"methods": rows}))
        return
    table = [[row["name"], row["title"], row["paper"], ", ".join(row["tuned"])] for row in rows]
    print_table(("--methods", "", "paper", "tuned"), table, right=False)
    reads = [[name, ", ".join(kind.options) or "nothing"] for name, kind in METHODS.items()]
    print_table(("head.method", "its options, each head.NAME"), reads, right=False)


def _compare(config: CompareConfig, out: Path, cache: Path, workers: int) -> None:
    from tapas.comparison.stages import compare as run_comparison

    status(expected_words(config, workers))
    try:
        with _terminated(), run_progress() as follow:
            run_comparison(
                config, out, cache=cache, status=status, progress=follow, workers=workers
            )
    except (KeyboardInterrupt, SystemExit):
        status(f"What is done is kept in {out}: the same command goes on.")
        raise


def expected_words(config: CompareConfig, workers: int) -> str:
    """How long it will take, about."""
    number = len(config.contenders)
    seconds = number * config.budget_seconds / workers
    side = f", {workers} side by side" if workers > 1 else ""
    methods = f"{number} method{'s' if number > 1 else ''}"
    return (
        f"{methods} at {duration(config.budget_seconds)} of training each{side}: about "
        f"{duration(seconds)}; reading, judging and measuring come on top."
    )


@contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM ends the processes that train, too, and not this one alone."""

    def end(number: int, frame: object) -> None:
        status("tapas: stopped by SIGTERM.")
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(out: Path, as_json: bool) -> None:
    from tapas.comparison.report import as_document, write_report
    from tapas.comparison.results import read_comparison

    comparison = read_comparison(out)
    files = write_report(comparison)
    OutputFolder(out).write(files)
    if as_json:
        typer.echo(json.dumps(as_document(comparison)))
    else:
        _print(comparison)
    status(f"Wrote {', '.join(str(out / name) for name in files)}.")


def _print(comparison: "Comparison") -> None:
    from tapas.comparison.recommendation import recommend_method
    from tapas.comparison.tables import SHORT, short_rows

    print_table(SHORT, short_rows(comparison), right=True)
    for words in recommend_method(comparison).sentences:
        typer.echo(words)
