"""Options that several commands share."""

import os
from pathlib import Path
from typing import Annotated

import typer

RESULTS = Path("results")
ALL_CORES = os.cpu_count() or 1
Out = Annotated[
    Path,
    typer.Option(metavar="FOLDER", help="Folder of the results, with one folder for each study."),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Run a small version, about a minute, in FOLDER/quick.")
]
Draw = Annotated[
    bool,
    typer.Option("--draw", help="Run nothing: redraw figures and pages from existing results."),
]
Workers = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of runs at the same time, one thread each.")
]


QUICK_FOLDER = "quick"


def home_of(out: Path, quick: bool) -> Path:
    """The folder of the results, or of those of --quick."""
    return out / QUICK_FOLDER if quick else out
