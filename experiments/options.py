"""Flags that the commands of several studies share."""

import os
from pathlib import Path
from typing import Annotated

import typer

RESULTS = Path("results")
ALL_CORES = os.cpu_count() or 1
Out = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Where results are kept; one folder for each study.")
]
Quick = Annotated[
    bool, typer.Option("--quick", help="A small version in a minute or less, in FOLDER/quick.")
]
Draw = Annotated[
    bool, typer.Option("--draw", help="Only draw and write, from the results at hand.")
]
Workers = Annotated[
    int, typer.Option(min=1, metavar="N", help="Runs side by side, one thread each.")
]


def home_of(out: Path, quick: bool) -> Path:
    """Where the results of either version are."""
    return out / "quick" if quick else out
