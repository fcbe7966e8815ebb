"""Which papers a comparison stands on."""

import json
from pathlib import Path

from tapas.comparison.comparing import SETTINGS
from tapas.comparison.contenders import by_name
from tapas.errors import DataError
from tapas.heads.citations import bibtex_of
from tapas.training.citing import optimizer_papers, papers_of
from tapas.training.config import OptimizerConfig


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
