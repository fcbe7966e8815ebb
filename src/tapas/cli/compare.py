"""`tapas compare`: train all methods on one log, for the same time, and recommend one."""

import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapas.atomic_file import OutputFolder
from tapas.cli.exit_codes import report_errors
from tapas.cli.options import (
    AsJson,
    Cache,
    Layer,
    LogOptions,
    cache_folder,
    parse_settings,
    with_log_options,
)
from tapas.cli.progress import run_progress
from tapas.cli.terminal import print_json, print_lines, print_table, say, status
from tapas.comparison.config import CompareConfig, quick, synthetic
from tapas.comparison.contenders import CONTENDERS, pick_contenders
from tapas.durations import duration, parse_duration
from tapas.errors import UsageError
from tapas.heads import METHODS
from tapas.phrases import counted
from tapas.training.config import JSON, build_config

if TYPE_CHECKING:
    from tapas.comparison.results import Comparison


SETTABLE = ("split", "model", "optimizer")


def build_comparison(
    log: dict[str, JSON], is_synthetic: bool, is_quick: bool, given: dict[str, Any], layer: Layer
) -> CompareConfig:
    """The comparison of these options. Raises `UsageError` before any work."""
    if (is_synthetic or is_quick) and log:
        raise UsageError(
            f"{'--synthetic' if is_synthetic else '--quick'} uses a synthetic log: leave out LOG "
            "and the options for reading it."
        )
    if not (is_synthetic or is_quick or log.get("files")):
        raise UsageError(
            "no log given. Try `tapas compare purchases.parquet --budget 1m`, or --synthetic."
        )
    _check_settable(layer)
    if is_quick:
        base = quick()
    elif is_synthetic:
        base = synthetic()
    else:
        base = None
    start: Layer = {"log": log or {"files": ["made-up"]}}
    if base is not None:
        start["model"] = _table(base.model)
        other = "kind" in layer.get("split", {})  # what is held out follows from it
        start["split"] = {} if other else _table(base.split)
        start["loop"] = {"batch": base.batch}
    built = build_config(start, layer)
    given |= {name: getattr(built, name) for name in SETTABLE} | {"batch": built.loop.batch}
    if is_quick:
        return quick(**given)
    return synthetic(**given) if is_synthetic else CompareConfig(log=built.log, **given)


def _table(section: Any) -> dict[str, JSON]:
    return {name: value for name, value in asdict(section).items() if value is not None}


def _check_settable(layer: Layer) -> None:
    for section, table in layer.items():
        for name in table:
            if section == "head":
                raise UsageError(
                    f"--set head.{name}: the settings that are tried for a method are fixed, see "
                    "`tapas compare --list`. Use --methods and --num-samples."
                )
            if (section, name) == ("optimizer", "rows_lr"):
                raise UsageError("optimizer.rows_lr is tuned for every method. Leave it out.")
            if section not in SETTABLE and (section, name) != ("loop", "batch"):
                raise UsageError(
                    f"--set {section}.{name} cannot be used in a comparison. Known: loop.batch and "
                    f"the names in {', '.join(SETTABLE)}."
                )


WORKERS = min(2, os.cpu_count() or 1)  # each holds a model and scores it over all classes


@with_log_options
def compare(
    *,
    is_synthetic: Annotated[
        bool,
        typer.Option(
            "--synthetic",
            help="Use a synthetic log, whose true distribution is known, instead of LOG.",
        ),
    ] = False,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Methods to compare, separated by commas (see --list); one of your own as "
            "module:Class. Default: all.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Total training time of each method, such as 90s, 10m or 1h. Default: 10m.",
        ),
    ] = None,
    num_samples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Sampled classes (n) of all methods that sample. Default: 1,000, but at most an "
            "eighth of the items.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Final runs of each method, each with another random seed. Default: 3.",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Settings tried for each method before its final runs. Default: 4.",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder for results. The same command continues from what is there.",
        ),
    ] = Path("compare"),
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            metavar="N",
            help="Number of runs at once, one thread each.",
        ),
    ] = WORKERS,
    log_options: LogOptions,
    cache: Cache = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.NAME=VALUE",
            help="A setting for all methods: in model, split or optimizer, or loop.batch.",
        ),
    ] = None,
    seconds_only: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A second of training each on a small synthetic log, to see the report.",
        ),
    ] = False,
    draw: Annotated[
        bool,
        typer.Option(
            "--draw",
            help="Train nothing; write the report of the results in --out again.",
        ),
    ] = False,
    show_list: Annotated[
        bool,
        typer.Option(
            "--list",
            help="List the methods and their settings, and exit.",
        ),
    ] = False,
    show_all: Annotated[
        bool,
        typer.Option("--all", help="Show losses, rare items, costs and settings as well."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare all methods on a log and recommend one.

    All methods share the log, its split, the encoder, the batches, the optimizers and n. Half of
    the budget goes to trying settings, scored on validation events, and half to the final runs,
    scored on test events. Each method gets as many steps as fit its budget at the speed it has
    alone; running two at once changes nothing.

    The table and the recommendation are printed here; README.md, report.html and a figure are
    written to --out. Stop it at any time: the same command continues. All methods with the
    default budget take about two hours on two cores; --methods names some of them.
    """
    with report_errors():
        if show_list:
            _print_contenders(as_json)
            return
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        import_module("tapas.comparison.report")  # a missing matplotlib is said before training
        if not draw:
            given: dict[str, Any] = {
                "budget_seconds": None if budget is None else parse_duration(budget),
                "samples": num_samples,
                "seeds": seeds,
                "trials": trials,
                "contenders": None if methods is None else pick_contenders(methods),
            }
            given = {name: value for name, value in given.items() if value is not None}
            config = build_comparison(
                log_options, is_synthetic, seconds_only, given, parse_settings(settings or [])
            )
            if config.log is not None:
                config.log.paths()  # raises for a missing file before a folder is made
            OutputFolder(out)
            _compare(config, out, cache_folder(cache), workers)
        _report(out, as_json, show_all)


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
        print_json({"methods": rows})
        return
    say("Methods for --methods. The learning rate of the class vectors is tuned for all of them.")
    for row in rows:
        paper = f" ({row['paper']})" if row["paper"] else ""
        _list_line(row["name"], f"{row['title']}{paper}")
        if row["tuned"][1:]:
            _list_line("", f"tuned: {row['tuned'][1]}")
    say("A method of your own: module:Class, for --methods and `tapas train --method`.")
    print_lines("")
    say(
        "Options of each method for `tapas train --method NAME`, each set with --set "
        "head.OPTION=VALUE:"
    )
    for name, kind in METHODS.items():
        options = ", ".join(kind.options) or "no options"
        _list_line(name, options)
    print_lines("", "What the options mean:")
    for name, methods in _option_help().items():
        for text, used_by in methods.items():
            whose = f"{used_by[0]}: " if len(methods) > 1 and len(used_by) == 1 else ""
            _list_line(name, f"{whose}{text}")


def _list_line(name: str, text: str) -> None:
    say(f"  {name:<20} {text}", indent=" " * 23)


def _option_help() -> dict[str, dict[str, list[str]]]:
    """By option: what it means, and the methods for which it means that."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, kind in METHODS.items():
        for option, facts in kind.options.items():
            default = "" if facts.default is None else f"; default: {facts.default}"
            found.setdefault(option, {}).setdefault(facts.help + default, []).append(name)
    return found


def _compare(config: CompareConfig, out: Path, cache: Path, workers: int) -> None:
    from tapas.comparison.stages import compare as run_comparison

    status(describe_duration(config, workers))
    try:
        with run_progress() as follow:
            run_comparison(
                config, out, cache=cache, status=status, progress=follow, workers=workers
            )
    except (KeyboardInterrupt, SystemExit):
        status(f"Results so far are kept in {out}: the same command continues.")
        raise


def describe_duration(config: CompareConfig, workers: int) -> str:
    """A sentence on how long the comparison will take."""
    number = len(config.contenders)
    seconds = number * config.budget_seconds / workers
    side = f", {workers} at once" if workers > 1 else ""
    return (
        f"{counted(number, 'method')}, {duration(config.budget_seconds)} of training each{side}: "
        f"about {duration(seconds)}, plus reading, timing and evaluation."
    )


def _report(out: Path, as_json: bool, show_all: bool) -> None:
    from tapas.comparison.report import as_document, write_report
    from tapas.comparison.results import read_comparison, refuse_damaged

    with refuse_damaged(out):
        comparison = read_comparison(out)
        files = write_report(comparison)
        if as_json:
            printed = [partial(print_json, as_document(comparison))]
        else:
            printed = list(_printed(comparison, show_all))
    OutputFolder(out).write(files)
    for show in printed:
        show()
    status(f"Wrote {', '.join(str(out / name) for name in files)}.")


def _printed(comparison: "Comparison", show_all: bool) -> Iterator[partial[None]]:
    """What is printed of a comparison: calls to make once nothing more can be wrong with it."""
    from tapas.comparison import tables
    from tapas.comparison.recommendation import recommend_method
    from tapas.comparison.settings import describe_test_points

    for words in recommend_method(comparison).sentences:
        yield partial(say, words)
    for words in tables.seed_sentences(comparison):
        yield partial(say, words)
    for each in comparison.methods:
        if each.state and not each.seeds_done:
            yield partial(say, f"{each.title}: {each.state}.")
    yield partial(print_lines, "")
    if num_points := tables.num_test_points(comparison):
        yield partial(
            say,
            f"{describe_test_points(comparison.settings, num_points)} ±: distance to the farther "
            "end of the 95 % interval (bootstrap over users and seeds).",
        )
        yield partial(print_lines, "")
    if rows := tables.quality_rows(comparison):
        yield partial(print_table, tables.TERMINAL_QUALITY, rows)
        yield partial(print_lines, "")
    if rows and show_all:
        yield partial(print_table, tables.TERMINAL_DETAILS, tables.detail_rows(comparison))
        yield partial(print_lines, "")
        yield partial(print_table, tables.TERMINAL_SETTINGS, tables.setting_rows(comparison))
        yield partial(print_lines, "")
    if baselines := tables.baseline_rows(comparison):
        yield partial(print_table, ("without training", *tables.TERMINAL_QUALITY[1:]), baselines)
