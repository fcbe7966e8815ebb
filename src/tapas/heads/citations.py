"""BibTeX of the papers behind heads, proposals and row optimizers, from bibliography.bib."""

import re
from collections.abc import Iterable
from importlib.resources import files

from tapas.heads.base import Head


def _read() -> dict[str, str]:
    """Entries by key; the file separates them by an empty line."""
    text = files("tapas.heads").joinpath("bibliography.bib").read_text(encoding="utf-8")
    entries = text.strip().split("\n\n")
    return {re.split(r"[{,]", entry, maxsplit=2)[1]: entry for entry in entries}


BIBTEX = _read()


def citation(head: Head) -> str:
    """BibTeX of the papers to cite for `head`; empty for a full softmax."""
    return bibtex_of(head.papers())


def bibtex_of(keys: Iterable[str]) -> str:
    """The entries of `keys` in their order, each once."""
    return "\n\n".join(BIBTEX[key] for key in dict.fromkeys(keys))
