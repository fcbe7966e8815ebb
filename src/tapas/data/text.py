"""Texts as logs: a document is a user, a word an item, its place the time."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

WORD = r"[a-z0-9]+(?:'[a-z]+)?"


def words_of(texts: pl.Series, split: str) -> tuple[pl.Series, NDArray[np.int64]]:
    """The words of all `texts` one after the other, (N,), and how many each text has.

    `"words"`: runs of a-z and 0-9 in lower case, with what follows an apostrophe;
    `"spaces"`: whatever stands between spaces, as written.
    """
    found = texts.str.to_lowercase() if split == "words" else texts
    found = found.str.extract_all(WORD if split == "words" else r"\S+")
    counts = found.list.len().cast(pl.Int64).to_numpy()
    return found.filter(found.list.len() > 0).explode(), counts


def places(document: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The place 0, 1, ... of every word within its document, documents in any order: (N,)."""
    order = np.argsort(document, kind="stable")
    starts = np.flatnonzero(np.diff(document[order], prepend=np.uint32(0xFFFFFFFF)))
    sizes = np.diff(starts, append=len(document))
    place = np.empty(len(document), dtype=np.int64)
    place[order] = np.arange(len(document)) - np.repeat(starts, sizes)
    return place
