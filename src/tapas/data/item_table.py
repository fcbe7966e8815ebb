"""Names and other columns of items, from a table that a shop has anyway."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tapas.data.column_words import tokens
from tapas.data.keys import normalize_keys
from tapas.data.readers import open_layout, read_frame, read_sample
from tapas.data.vocabulary import Vocabulary
from tapas.errors import DataError, UsageError, choice
from tapas.regular_file import check_given

ROLES = ("item", "name")
NAME_WORDS = ("name", "title", "label", "description", "path", "product", "text")
MOST_VALUES = 1_000  # of a column that tells groups of items apart
SHOWN_LETTERS = 200  # of a value


Value = str | float | None


@dataclass(frozen=True, slots=True)
class ItemTable:
    """What is known of the items of a model, by id."""

    names: list[str | None] | None  # (C,), None without a column of names
    columns: pl.DataFrame  # (C, ...) all others as text
    groups: dict[str, list[Value]]  # (C,) columns that tell items apart: departments, prices
    num_found: int  # items of the model that the table has

    def name(self, id: int) -> str | None:
        return None if self.names is None else self.names[id]

    def values(self, id: int) -> dict[str, str]:
        """The columns of one item; those without a value are left out."""
        found = self.columns.row(id, named=True) if self.columns.width else {}
        return {name: value for name, value in found.items() if value is not None}

    def search(self, words: str, limit: int) -> list[int]:
        """Ids of the first `limit` items, by frequency, whose names contain all of `words`."""
        wanted = words.casefold().split()
        found: list[int] = []
        if self.names is None or not wanted:
            return found
        for id, name in enumerate(self.names):
            if name is not None and all(word in name.casefold() for word in wanted):
                found.append(id)
                if len(found) == limit:
                    break
        return found


def read_item_table(
    path: Path, known: Vocabulary, columns: Mapping[str, str] | None = None
) -> ItemTable:
    """Read the file `path`, a table with one row for each item.

    `columns` names the columns of item keys and of names ("item", "name"). By default the first is
    the one with most keys of the model, the second is found by its name, such as title. Raises
    UsageError if the file has no item of the model, or a column cannot be what it is said to be.
    """
    columns = dict(columns or {})
    check_given(path)
    layout = open_layout(path, None, False)
    sample = read_sample(path, layout)
    for role, name in columns.items():
        choice("role of a column", role, dict.fromkeys(ROLES))
        if name not in sample.columns:
            raise UsageError(
                f"{path} has no column '{name}'. Columns: {', '.join(sample.columns)}."
            )
    named = columns.get("name")
    if named is not None and named == columns.get("item"):
        raise UsageError(f"column '{named}' is to have both item keys and names; expected two.")
    if named is not None and sample[named].dtype.is_nested():
        raise UsageError(
            f"column '{named}' of {path} has type {sample[named].dtype}; expected names as text."
        )
    key = columns.get("item") or _key_column(path, sample.select(pl.exclude(named or [])), known)
    frame = read_frame(path, sample.columns, skip_bad_rows=True, layout=layout).rows
    row = _rows(frame[key], path, known)
    if not (row >= 0).any():
        raise UsageError(
            f"no value in column '{key}' of {path} is an item of the model, such as "
            f"'{_example(known)}'. Name another column: --column item=NAME."
        )
    others = [name for name in frame.columns if name != key]
    texts = {name: _texts(frame[name]) for name in others if not frame[name].dtype.is_nested()}
    named = named or _name_column(texts)
    names = None if named is None else _by_id(texts.pop(named), row).to_list()
    groups: dict[str, list[Value]] = {}
    for other, column in texts.items():
        if 1 < column.n_unique() <= min(MOST_VALUES, len(column) // 2 + 1):
            groups[other] = _by_id(column, row).to_list()
        elif column.n_unique() > 1 and (numbers := _numbers(column)) is not None:
            groups[other] = _by_id(numbers, row).to_list()
    shown = pl.DataFrame({other: _by_id(column, row) for other, column in texts.items()})
    return ItemTable(names, shown, groups, int((row >= 0).sum()))


def _rows(keys: pl.Series, path: Path, known: Vocabulary) -> NDArray[np.int64]:
    """The row of each item of `known`, (C,), the first of several; -1 for none."""
    ids = known.lookup(normalize_keys(keys, path))
    row = np.full(len(known), -1, dtype=np.int64)
    present = np.flatnonzero(ids >= 0)[::-1]
    row[ids[present]] = present
    return row


def _key_column(path: Path, sample: pl.DataFrame, known: Vocabulary) -> str:
    """The column most of whose first values are items of the model."""
    shares = {}
    for name in sample.columns:
        try:
            column = normalize_keys(sample[name], path).drop_nulls()
        except DataError:  # such as prices, dates and lists
            continue
        shares[name] = float((known.lookup(column) >= 0).mean()) if len(column) else 0.0
    best = max(shares, key=lambda name: shares[name], default=None)
    if best is None or not shares[best]:
        raise UsageError(
            f"no column of {path} looks like the items of the model, such as '{_example(known)}'. "
            f"Name it: --column item=NAME. Columns: {', '.join(sample.columns)}."
        )
    return best


def _example(known: Vocabulary) -> str | int:
    """The most frequent item."""
    return known.key(int(known.rare_id == 0 and len(known) > 1))


def _name_column(texts: Mapping[str, pl.Series]) -> str | None:
    """The column that looks most like names: by its own name, else the one with most values."""
    for word in NAME_WORDS:
        for name in texts:
            if word in tokens(name) and texts[name].n_unique() > 1:
                return name
    numbers = {
        name: column.n_unique()
        for name, column in texts.items()
        if column.str.contains(r"\p{L}{2}").mean() or 0.0  # has words, not only numbers
    }
    return max(numbers, key=lambda name: numbers[name], default=None)


def _texts(column: pl.Series) -> pl.Series:
    """`column` as text; empty values are null, and bytes that are no text."""
    try:
        text = column.cast(pl.String, strict=False)
    except pl.exceptions.PolarsError:
        text = pl.Series(column.name, [None] * len(column), dtype=pl.String)
    text = text.str.strip_chars().str.head(SHOWN_LETTERS)
    return text.set((text == "").fill_null(False), None)


def _numbers(texts: pl.Series) -> pl.Series | None:
    """The finite numbers in `texts`, else null; None if some are no numbers."""
    numbers = texts.cast(pl.Float64, strict=False)
    if numbers.null_count() > texts.null_count():
        return None
    return numbers.set(~numbers.is_finite().fill_null(False), None)


def _by_id(column: pl.Series, row: NDArray[np.int64]) -> pl.Series:
    found = column.gather(pl.Series(np.maximum(row, 0)))
    return found.set(pl.Series(row < 0), None)
