"""`python -m experiments published`: public sets beside their published tables."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.options import RESULTS, Draw, Out
from experiments.published.page import NAME, page
from experiments.published.runs import FULL, METHODS, PublishedRun, execute
from experiments.published.sets import SETS, find_sets
from experiments.trained_runs import Place, run_study
from tapas.atomic_file import OutputFolder
from tapas.cli.exit_codes import report_errors
from tapas.cli.options import Cache
from tapas.cli.terminal import status
from tapas.comparison.ledger import Ledger
from tapas.errors import choice

ABOUT = {NAME: ("Not a claim of the paper: public sets beside their published tables.", "900")}
RECIPE = 1  # of `tapas train`; raised when what it chooses changes
SEEDS = (0, 1, 2)


def published(
    data: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder with clones of salesforce/ICLRec, FeiSun/BERT4Rec and CCIIPLab/GCE-GNN.",
        ),
    ] = Path("data"),
    sets: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Some of {','.join(SETS)}, separated by commas.")
    ] = ",".join(SETS),
    methods: Annotated[
        str,
        typer.Option(metavar="NAMES", help=f"Some of {','.join(METHODS)}, separated by commas."),
    ] = ",".join(METHODS),
    out: Out = RESULTS,
    cache: Cache = None,
    draw: Draw = False,
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Runs at the same time, one thread each.")
    ] = 2,
) -> None:
    """Train on public sets and compare with published tables.

    Four models on each set, three seeds: what `tapas train` does by itself, and a full softmax, a
    sampled one and TAPAS without counting. Where `tapas train` takes a full softmax by itself, this
    is not trained twice. Finished runs are kept, a run that was stopped is
    continued: you can stop at any time, and the same command goes on. Many hours on two cores for
    all sets; choose some with --sets and --methods.
    """
    with report_errors():
        folder, chosen = out / NAME, find_sets(sets)
        wanted = [name.strip() for name in methods.split(",")]
        for name in wanted:
            choice("method", name, METHODS)
        ledger = Ledger(folder / "results.jsonl")
        if not draw:
            place = Place.of(NAME, data, cache)
            for each in chosen:
                each.log(data, place.cache)  # or an error, before anything is trained
            runs = [
                PublishedRun(set=each.name, method=method, seed=seed, recipe=RECIPE)
                for method in wanted
                for seed in SEEDS
                for each in chosen
                if not (method == FULL and each.few_items)  # the softmax of the default is that
            ]
            run_study(NAME, runs, execute, ledger, place, workers=workers)
        OutputFolder(folder).write({"README.md": page(ledger, RECIPE, SEEDS).encode()})
        status(f"Wrote {folder / 'README.md'}.")
