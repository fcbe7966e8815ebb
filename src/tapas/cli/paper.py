"""`tapas paper`: the paper's synthetic experiments, and a verdict on every claim."""

import json
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table

from tapas.cli.endings import one_line_endings
from tapas.cli.results_folder import ResultsFolder
from tapas.paper.claims import Book, Claim, judge_claims
from tapas.paper.crew import Progress
from tapas.paper.experiment import conduct
from tapas.paper.gradient_cost import gradient_cost
from tapas.paper.ledger import Ledger
from tapas.paper.report import claims_table, study_page
from tapas.paper.runs import Run
from tapas.paper.studies import FIGURE_2, STUDIES, Study, find_study, fit_quick

app = typer.Typer(
    name="paper",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The paper's synthetic experiments, with a verdict on every claim.",
)
Out = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Where results are kept; one folder for each study.")
]
RESULTS = Path("results")


@app.command("list")
def list_studies() -> None:
    """Say what can be run, what it is about and how long it takes."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("study", "about", "minutes on 2 cores"):
        table.add_column(heading)
    for study in STUDIES.values():
        table.add_row(study.name, study.claim, study.minutes)
    Console(highlight=False).print(table)


@app.command()
def claims(
    out: Out = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list on stdout.")] = False,
) -> None:
    """Judge every claim of the paper by the results at hand. Trains nothing."""
    with one_line_endings():
        rows = judge_claims(_book(out))
        if as_json:
            typer.echo(json.dumps([asdict(row) for row in rows], indent=1))
            return
        table = Table(box=box.SIMPLE_HEAD)
        for heading in ("claim", "verdict", "evidence"):
            table.add_column(heading)
        for row in rows:
            table.add_row(row.text, row.verdict, row.evidence)
        Console(highlight=False).print(table)


def _command(study: Study) -> None:
    """One command for each study, because `tapas paper figure-1` is what people type."""

    def run(
        out: Out = RESULTS,
        quick: Annotated[
            bool,
            typer.Option("--quick", help="A small version in about a minute, in FOLDER/quick."),
        ] = False,
        draw: Annotated[
            bool, typer.Option("--draw", help="Only draw and write, from the results at hand.")
        ] = False,
        workers: Annotated[
            int, typer.Option(min=1, metavar="N", help="Runs side by side, one thread each.")
        ] = os.cpu_count() or 1,
    ) -> None:
        with one_line_endings():
            run_study(study.name, out, quick=quick, draw=draw, workers=workers)

    run.__doc__ = (
        f"{study.title}. {study.claim}\n\nLearning rates and temperatures are searched for on "
        "validation points, the same search for every method. Every finished run is kept: stop "
        "it at any moment and the same command continues. "
        f"About {study.minutes} minutes on two cores."
    )
    app.command(study.name)(run)


for _study in STUDIES.values():
    _command(_study)


def run_study(name: str, out: Path, *, quick: bool, draw: bool, workers: int) -> None:
    """Run what is missing, then draw the figure and write the page."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from tapas.paper.curves import draw_study

    study = find_study(name)
    if quick:
        study, out = study.quick(), out / "quick"
    folder = ResultsFolder(out / name)
    ledger = _ledger(out, study)
    files = {}
    if not draw:
        _conduct(study, ledger, workers)
        if name == FIGURE_2.name:
            cost = gradient_cost(repeats=20 if quick else 400)
            files["gradient_cost.json"] = (json.dumps(cost, indent=1) + "\n").encode()
            folder.write(files)
    rows = judge_claims(_book(out, quick=quick))
    page = study_page(study, ledger, rows)
    folder.write({"figure.png": draw_study(study, ledger), "README.md": page.encode()})
    ResultsFolder(out).write({"README.md": _overview(out, rows).encode()})
    typer.echo(f"Wrote {out / name / 'figure.png'} and {out / name / 'README.md'}.", err=True)
    for row in rows:
        if row.study == name:
            typer.echo(f"{row.verdict}: {row.text} {row.evidence}")


def _conduct(study: Study, ledger: Ledger, workers: int) -> None:
    bars = Bars(
        TextColumn("{task.description:<22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )

    def follow(stage: str) -> Progress:
        task = bars.add_task(stage, total=None)

        def move(done: int, total: int, run: Run) -> None:
            bars.update(task, completed=done, total=total)

        return move

    with bars:
        conduct(study.experiment, ledger, follow, workers=workers)


def _book(out: Path, *, quick: bool = False) -> Book:
    """Every study that has results below `out`."""
    studies = {}
    for name, study in STUDIES.items():
        file = out / name / "results.jsonl"
        if file.exists():
            studies[name] = (study.quick() if quick else study, _ledger(out, study))
    cost = out / "figure-2" / "gradient_cost.json"
    measured = json.loads(cost.read_text()) if cost.exists() else None
    return Book(studies, measured, fit=fit_quick) if quick else Book(studies, measured)


def _ledger(out: Path, study: Study) -> Ledger:
    lender = [out / study.borrows / "results.jsonl"] if study.borrows else []
    return Ledger(out / study.name / "results.jsonl", also=lender)


def _overview(out: Path, rows: list[Claim]) -> str:
    pages = [name for name in STUDIES if (out / name / "README.md").exists()]
    lines = [
        "# The paper's claims about its synthetic experiments",
        "",
        "Judged by `tapas paper claims` from the ledgers in these folders: "
        + ", ".join(f"[{name}]({name}/README.md)" for name in pages)
        + ".",
        "",
        *claims_table(rows),
        "",
    ]
    return "\n".join(lines)
