"""Weights of events: read from a column, and summed where events are the same."""

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tapas.errors import DataError

DECIMAL_COMMA = r"^(\d*),(\d\d?)$"  # three digits after a comma may be thousands
SMALLEST, LARGEST = 1e-30, 1e30  # so that float32 holds the sum of many


def parse_weights(column: pl.Series, path: Path) -> pl.Series:
    """`column` as Float64, null where a value is not a number above 0."""
    dtype = column.dtype
    if dtype == pl.String or dtype == pl.Categorical or dtype == pl.Enum:
        text = column.cast(pl.String).str.strip_chars()
        numbers = text.str.replace(DECIMAL_COMMA, "$1.$2").cast(pl.Float64, strict=False)
    elif dtype.is_numeric() or dtype == pl.Null:
        numbers = column.cast(pl.Float64)
    else:
        raise DataError(f"{path}: column '{column.name}' has type {dtype}; expected numbers.")
    good = (numbers >= SMALLEST) & (numbers <= LARGEST)  # NaN counts as above all numbers
    return pl.select(pl.when(good).then(numbers).alias(column.name)).to_series()


def add_up(
    weight: NDArray[np.float64],
    events: tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint32]],
    distinct: tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint32]],
) -> NDArray[np.float64]:
    """The weight of each of the `distinct` events, the sum over `events` that are the same.

    Both are (user, time, item), in any order. The result does not depend on the order of `events`.
    """
    user, time, item = events
    order = np.lexsort((weight, item, time, user))
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = False
    for column in events:
        is_first[1:] |= column[order[1:]] != column[order[:-1]]
    summed = np.empty(len(distinct[0]))
    summed[np.lexsort(distinct[::-1])] = np.add.reduceat(weight[order], np.flatnonzero(is_first))
    return summed
