"""`tapas cite`: whom to thank."""

from pathlib import Path
from typing import Annotated

import typer

from tapas.cli.endings import one_line_endings


def cite(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or of a comparison.")
    ],
) -> None:
    """Print BibTeX for the methods that a run, or a comparison, used."""
    with one_line_endings():
        from tapas.comparison.citing import cite_comparison, is_comparison
        from tapas.training.citing import cite as cite_run
        from tapas.training.run_folder import open_run

        if is_comparison(run):
            typer.echo(cite_comparison(run))
        else:
            typer.echo(cite_run(open_run(run).config))
