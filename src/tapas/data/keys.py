"""Raw keys encoded as integers 0 .. n-1, in the order of the keys.

Keys become Int64, UInt64 or String: a column of text that is all integers becomes integers,
integers beyond 64 bits become text.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tapas.errors import DataError

MAX_EXACT_FLOAT = 2**53
GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2^64 / golden ratio, for Fibonacci hashing
MAX_TABLE_BITS = 26
CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]*)(\.0+)?$"


@dataclass(frozen=True, slots=True)
class CodedKeys:
    """`keys[codes]` are the raw keys; `keys` are distinct and sorted."""

    codes: NDArray[np.uint32]  # (N,)
    keys: pl.Series  # (n,)


def normalize_keys(column: pl.Series, path: Path) -> pl.Series:
    """`column` as Int64, UInt64 or String, null where a key is missing.

    Raises `DataError` for other types, fractions, and floats beyond 2^53; it names `path`.
    """
    dtype = column.dtype
    if dtype == pl.Int64:
        return column
    if dtype == pl.UInt64:
        largest = column.max()
        fits = not isinstance(largest, int) or largest < 2**63
        return column.cast(pl.Int64) if fits else column
    if dtype == pl.Int128 or dtype == pl.UInt128:
        return _as_integers_if_all(column.cast(pl.String))
    if dtype.is_integer() or dtype == pl.Null:
        return column.cast(pl.Int64)
    if dtype.is_float():
        return _integers_from_floats(column.cast(pl.Float64), path)
    if dtype.is_decimal():
        return _integers_from_decimals(column, path)
    if dtype == pl.Binary:  # as some writers of Parquet store text
        try:
            column = column.cast(pl.String)
        except pl.exceptions.PolarsError:
            raise DataError(
                f"{path}: column '{column.name}' has bytes that are not UTF-8 text; expected "
                "integers or text."
            ) from None
        dtype = column.dtype
    if dtype == pl.String or dtype == pl.Categorical or dtype == pl.Enum:
        column = column.cast(pl.String)
        empty = column == ""
        return column.set(empty, None) if empty.any() else column
    raise DataError(f"{path}: column '{column.name}' has type {dtype}; expected integers or text.")


def code_keys(columns: list[pl.Series], *, typed: bool) -> CodedKeys:
    """Encode the `columns` of all files together. Unless `typed`, text may become integers."""
    dtypes = {column.dtype for column in columns}
    if len(dtypes) > 1:
        columns = [column.cast(pl.String) for column in columns]
    column = pl.concat(columns, rechunk=True)
    if column.dtype == pl.Int64:
        return code_integers(column.to_numpy())
    distinct = column.unique()
    final = distinct if typed or column.dtype != pl.String else _as_integers_if_all(distinct)
    keys = final.unique().sort()
    code = final.rank("dense").cast(pl.UInt32) - 1
    name = column.name
    table = pl.DataFrame({name: distinct, "code": code})
    codes = pl.DataFrame({name: column}).join(
        table, on=name, how="left", maintain_order="left", nulls_equal=True
    )["code"]
    return CodedKeys(codes.to_numpy(), keys)


def code_integers(numbers: NDArray[np.int64]) -> CodedKeys:
    """`code_keys` for integers (N,), several times faster than a join.

    Uses a hash table with one key per slot; keys that lose a slot to another are found by binary
    search.
    """
    ordered = np.sort(numbers)
    is_new = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    keys = ordered[is_new]
    del ordered, is_new
    bits = min(MAX_TABLE_BITS, (16 * len(keys)).bit_length())
    table = np.zeros(1 << bits, dtype=np.uint32)
    table[_slots(keys, bits)] = np.arange(len(keys), dtype=np.uint32)
    codes = table[_slots(numbers, bits)]
    wrong = np.flatnonzero(keys[codes] != numbers)
    codes[wrong] = np.searchsorted(keys, numbers[wrong])
    return CodedKeys(codes, pl.Series(keys))


def _slots(numbers: NDArray[np.int64], bits: int) -> NDArray[np.uint64]:
    slots = numbers.view(np.uint64) * GOLDEN
    slots >>= np.uint64(64 - bits)
    return slots


def _as_integers_if_all(keys: pl.Series) -> pl.Series:
    """Text as integers if all keys are integers in their usual notation, optionally with ".0"."""
    if not bool(keys.str.contains(CANONICAL_INTEGER).all()):
        return keys
    digits = keys.str.replace(r"\.0+$", "")
    for dtype in (pl.Int64, pl.UInt64):
        numbers = digits.cast(dtype, strict=False)
        if numbers.null_count() == keys.null_count():
            return numbers
    return digits


def _integers_from_floats(column: pl.Series, path: Path) -> pl.Series:
    column = column.fill_nan(None)
    bad = (column != column.floor()) | (column.abs() > MAX_EXACT_FLOAT)
    if bad.any():
        row = bad.fill_null(False).arg_true()[0]
        raise DataError(
            f"{path}, row {row + 1}: {column.name} is {column[row]}, a number with a fraction or "
            "beyond 2^53; expected integers or text. Store the column as one of these."
        )
    return column.cast(pl.Int64)


def _integers_from_decimals(column: pl.Series, path: Path) -> pl.Series:
    text = column.cast(pl.String).str.replace(r"\.0*$", "")
    bad = text.str.contains(".", literal=True)
    if bad.any():
        row = bad.fill_null(False).arg_true()[0]
        raise DataError(
            f"{path}, row {row + 1}: {column.name} is {column[row]}, a number with a fraction; "
            "expected integers or text. Store the column as one of these."
        )
    return _as_integers_if_all(text)
