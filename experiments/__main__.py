"""`python -m experiments`: one command for each study, and the verdicts on the paper's claims."""

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from experiments.claims import END, START, claims_rows, replace_block
from experiments.default_model import ABOUT as DEFAULT_MODEL
from experiments.default_model import default_model
from experiments.estimators.command import ABOUT as ESTIMATORS
from experiments.estimators.command import estimators
from experiments.four_ways import ABOUT as FOUR_WAYS
from experiments.four_ways import four_ways
from experiments.options import ALL_CORES, RESULTS, Draw, Out, Quick, Workers, home_of
from experiments.overview import all_claims, study_ledger, write_overview
from experiments.published.command import ABOUT as PUBLISHED
from experiments.published.command import published
from experiments.quick import GENERATED_POINTS, say_quick
from experiments.real import command as paper_real
from experiments.recipe import ABOUT as RECIPE
from experiments.recipe import recipe
from experiments.synthetic.experiment import run_experiment
from experiments.synthetic.gradient_cost import gradient_cost
from experiments.synthetic.page import study_page
from experiments.synthetic.studies import FIGURE_2, STUDIES, Study, find_study
from experiments.system import command as paper_system
from tapas.atomic_file import OutputFolder
from tapas.cli.exit_codes import report_errors
from tapas.cli.progress import run_progress
from tapas.cli.terminal import print_json, print_lines, print_table, status

app = typer.Typer(
    name="experiments",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run the paper's experiments and draw their figures; check every claim of the paper.",
)


@app.command("list")
def list_studies() -> None:
    """List the studies, their claims and how long they take."""
    about = {study.name: (study.claim, study.minutes) for study in STUDIES.values()}
    about |= {
        **paper_real.ABOUT,
        **paper_system.ABOUT,
        **ESTIMATORS,
        **FOUR_WAYS,
        **PUBLISHED,
        **DEFAULT_MODEL,
        **RECIPE,
    }
    rows = [[name, *words] for name, words in about.items()]
    print_table(("study", "claim", "minutes on 2 cores"), rows, right=False)


@app.command()
def claims(
    out: Out = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="PAGE",
            dir_okay=False,
            help=f"Write a short table of the verdicts into this Markdown page, between {START} "
            f"and {END}.",
        ),
    ] = None,
) -> None:
    """Print the verdict on every claim.

    Verdicts follow from the results in FOLDER by fixed rules. Nothing is trained.
    """
    with report_errors():
        rows = all_claims(out)
        if as_json:
            print_json([row.as_json() for row in rows], indent=1)
        elif page is not None:
            page.write_text(replace_block(page, rows))
        else:
            headings = ("claim", "verdict", "evidence")
            print_table(headings, claims_rows(rows, indent="  "), right=False)


def _command(study: Study) -> None:
    """Add a command with the name of `study`."""

    def run(
        out: Out = RESULTS,
        quick: Quick = False,
        draw: Draw = False,
        workers: Workers = ALL_CORES,
    ) -> None:
        with report_errors():
            run_study(study.name, out, quick=quick, draw=draw, workers=workers)

    run.__doc__ = (
        f"{study.title}. {study.claim}\n\nLearning rates and temperatures are chosen on "
        "validation points, by the same search for every method. Finished runs are kept: you can "
        "stop at any time, and the same command continues. "
        f"About {study.minutes} minutes on two cores."
    )
    app.command(study.name)(run)


for _study in STUDIES.values():
    _command(_study)
for _name, _function in paper_real.COMMANDS.items():
    app.command(_name)(_function)
app.command("table-1")(paper_system.table_1)
app.command()(estimators)
app.command("four-ways")(four_ways)
app.command()(published)
app.command()(recipe)
app.command("default-model")(default_model)


def run_study(name: str, out: Path, *, quick: bool, draw: bool, workers: int) -> None:
    """Run the missing runs, then draw the figure and write the page."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from experiments.synthetic.figures import draw_study

    study = find_study(name)
    study, out = study.quick() if quick else study, home_of(out, quick)
    if quick:
        say_quick(GENERATED_POINTS)
    folder = OutputFolder(out / name)
    ledger = study_ledger(out, study)
    files = {}
    if not draw:
        with run_progress() as follow:
            run_experiment(study.experiment, ledger, follow, workers=workers)
        if name == FIGURE_2.name:
            cost = gradient_cost(repeats=20 if quick else 400)
            files["gradient_cost.json"] = (json.dumps(cost, indent=1) + "\n").encode()
            folder.write(files)
    rows = [] if quick else all_claims(out)
    page = study_page(study, ledger, rows)
    folder.write({"figure.png": draw_study(study, ledger), "README.md": page.encode()})
    if not quick:
        write_overview(out, rows)
    status(f"Wrote {out / name / 'figure.png'} and {out / name / 'README.md'}.")
    for row in rows:
        if row.study == name:
            print_lines(row.one_line)


if __name__ == "__main__":
    app(prog_name="python -m experiments")
