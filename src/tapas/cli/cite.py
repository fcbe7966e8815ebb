"""`tapas cite`: BibTeX of the library and of the methods of a run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tapas.cli.exit_codes import report_errors
from tapas.comparison.contenders import by_name
from tapas.comparison.settings import SETTINGS
from tapas.errors import DataError
from tapas.heads.citations import bibtex_of
from tapas.training.config import HeadConfig, OptimizerConfig, TrainConfig

ROW_OPTIMIZERS = {
    "rowwise-adagrad": ("duchi2011adaptive",),
    "adagrad": ("duchi2011adaptive",),
    "lazy-adam": ("kingma2015adam",),
    "sgd": (),
}


def cite_run(config: TrainConfig) -> str:
    """BibTeX for the method of a run and for the optimizer of its rows."""
    return bibtex_of((*papers_of(config.head), *optimizer_papers(config.optimizer)))


def papers_of(head: HeadConfig) -> tuple[str, ...]:
    """Keys of what a head with this configuration is made of."""
    return head.kind.papers_of(head.options)


def optimizer_papers(optimizer: OptimizerConfig) -> tuple[str, ...]:
    return ROW_OPTIMIZERS[optimizer.rows]


def is_comparison(folder: Path) -> bool:
    return (folder / SETTINGS).is_file()


def cite_comparison(folder: Path) -> str:
    """BibTeX for all methods of the comparison in `folder`, and for the optimizer of its rows."""
    try:
        settings = json.loads((folder / SETTINGS).read_text())
        contenders = by_name(settings["contenders"])
        optimizer = OptimizerConfig(rows=settings["optimizer"]["rows"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder / SETTINGS} cannot be read as the settings of a comparison: {error}. Restore "
            "it from a copy."
        ) from None
    heads = [contender.head(1, None) for contender in contenders]
    return bibtex_of(
        [key for head in heads for key in papers_of(head)] + [*optimizer_papers(optimizer)]
    )


def cite(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or of a comparison.")
    ],
) -> None:
    """Print BibTeX for the library, or for the methods of a run."""
    with report_errors():
        from tapas.training.run_folder import open_run

        if is_comparison(run):
            typer.echo(cite_comparison(run))
        else:
            typer.echo(cite_run(open_run(run).config))
