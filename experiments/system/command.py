"""`table-1`: steps a second with workers and servers; with `--data`, in one process."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from experiments.options import RESULTS, Draw, Out, Quick, home_of
from experiments.overview import PACES, all_claims, system_ledger, write_overview
from experiments.quick import say_quick
from experiments.real.command import ALL, measure_paces
from experiments.system.claims import STUDY
from experiments.system.config import ROUNDS, Round, System, check_same_system
from experiments.system.measure import measure
from experiments.system.page import RULE_WORDS, rates_table, system_page
from experiments.system.results import SystemResults
from tapas.atomic_file import OutputFolder
from tapas.cli.exit_codes import report_errors
from tapas.cli.options import Cache, cache_folder
from tapas.cli.progress import run_progress
from tapas.cli.terminal import print_lines, print_table, status
from tapas.comparison.ledger import Ledger
from tapas.comparison.process_pool import run_missing
from tapas.errors import UsageError

DEFAULT = System()


def _count(words: str, least: int = 1) -> typer.models.OptionInfo:
    """An option of the system: None, if it was not given."""
    found: typer.models.OptionInfo = typer.Option(
        min=least, metavar="N", help=words, show_default=False
    )
    return found


Servers = Annotated[
    int | None, _count(f"Number of servers, which hold the rows. Default: {DEFAULT.servers}.")
]
Workers = Annotated[
    int | None, _count(f"Number of workers, which train. Default: {DEFAULT.workers}.")
]
Staleness = Annotated[
    int | None, _count("Earlier steps a step may not have seen. Default: 2 x workers - 1.", 0)
]
Classes = Annotated[
    int | None, _count(f"Classes of the synthetic log. Default: {DEFAULT.classes:,}.")
]
Users = Annotated[int | None, _count(f"Users of the synthetic log. Default: {DEFAULT.users:,}.")]
Steps = Annotated[
    int | None, _count(f"Measured steps of each cell and round. Default: {DEFAULT.steps}.")
]
WarmUp = Annotated[
    int | None, _count(f"Steps before the measured ones. Default: {DEFAULT.warm_up}.")
]
Rounds = Annotated[int | None, _count(f"Measurements of every cell. Default: {ROUNDS}.")]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Measure one process on the real sets instead; their files are in this folder. "
        "Default with --sets: data.",
        show_default=False,
    ),
]
Names = Annotated[
    str | None,
    typer.Option(
        "--sets",
        metavar="NAMES",
        help=f"Real sets to measure: some of {ALL}, separated by commas. Default with --data: all.",
        show_default=False,
    ),
]


def table_1(
    out: Out = RESULTS,
    servers: Servers = None,
    workers: Workers = None,
    max_staleness: Staleness = None,
    classes: Classes = None,
    users: Users = None,
    steps: Steps = None,
    warm_up: WarmUp = None,
    rounds: Rounds = None,
    data: Data = None,
    sets: Names = None,
    cache: Cache = None,
    quick: Quick = False,
    draw: Draw = False,
) -> None:
    """Steps per second with workers and servers.

    Also measures how often their gradients are stale. n = 1,000 and 8,000 samples, r = 1 and 8,
    both rules, on a synthetic log of 500,000 classes with the statistics of the paper's log.
    Finished rounds are kept: you can stop at any time, and the same command continues. Needs an
    idle machine.

    With --data or --sets: every cell of figure 3 in one process, with the settings found by its
    search. A few minutes for each set.
    """
    with report_errors():
        options = {
            "servers": servers, "workers": workers, "max_staleness": max_staleness,
            "classes": classes, "users": users, "steps": steps, "warm_up": warm_up,
        }  # fmt: skip
        given = {name: value for name, value in options.items() if value is not None}
        unused = [*given, *(["rounds"] if rounds is not None else [])]
        if data is not None or sets is not None:
            _refuse(unused, "--data and --sets")
            measure_paces(
                out, data or Path("data"), ALL if sets is None else sets, cache,
                quick=quick, draw=draw,
            )  # fmt: skip
            return
        home = home_of(out, quick)
        if draw:
            _refuse(unused, "--draw")
            _draw(home, out, quick=quick)
            return
        if quick:
            say_quick()
        system = _system(given, quick=quick)
        OutputFolder(home / STUDY)  # fails before the work if it cannot be written
        ledger = system_ledger(home)
        check_same_system(ledger, system)
        wanted = rounds or (1 if quick else ROUNDS)
        _run(ledger, [Round(system, number) for number in range(wanted)], cache_folder(cache))
        _write(home, ledger, quick=quick)


ABOUT = {
    "table-1": ("r=8 costs about 10 % more time than r=1; gradients are less often stale.", "18")
}


def _system(given: dict[str, int], *, quick: bool) -> System:
    if "workers" in given:
        given = {"max_staleness": 2 * given["workers"] - 1, **given}
    return replace(DEFAULT.quick() if quick else DEFAULT, **given)


def _refuse(names: list[str], other: str) -> None:
    """Raise an error for options that would be ignored."""
    if names:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise UsageError(
            f"{words} cannot go with {other}: only a measurement of workers and servers takes "
            "that. Leave one of them out."
        )


def _run(ledger: Ledger, rounds: list[Round], cache: Path) -> None:
    if not ledger.missing(rounds):
        return
    go = partial(measure, cache=cache, status=status)
    with run_progress() as follow:
        run_missing(ledger, rounds, go, follow("rounds"), workers=1)


def _draw(home: Path, out: Path, *, quick: bool) -> None:
    """Redraw both tables, if they were measured."""
    paces, ledger = home / PACES, system_ledger(home)
    if ledger.path.exists() or not paces.exists():
        _write(home, ledger, quick=quick)
    if paces.exists():
        measure_paces(out, Path("data"), ALL, None, quick=quick, draw=True)


def _write(home: Path, ledger: Ledger, *, quick: bool) -> None:
    """Write figure, page and overview from the ledger, and print tables and verdicts."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from experiments.system.figure import draw_system

    found = SystemResults(ledger)
    claims = [] if quick else all_claims(home)
    page = system_page(found, claims, quick=quick).encode()
    picture = draw_system(found, quick=quick)
    OutputFolder(home / STUDY).write({"figure.png": picture, "README.md": page})
    if not quick:
        write_overview(home, claims)
    status(f"Wrote {home / STUDY / 'README.md'}.")
    for rule, words in RULE_WORDS.items():
        print_table(*rates_table(found, rule, quick=quick), right=False, title=words)
    for claim in claims:
        if claim.study == STUDY:
            print_lines(claim.one_line)
