"""Times parsed to int64: datetimes as microseconds since the epoch, integers unchanged."""

from pathlib import Path

import polars as pl

from tapas.errors import DataError

# kinds of times, as the report of a log names them
DATETIME, NUMBER = "datetime", "number"
FILE_ORDER, TEXT_POSITION = "file order", "place in the text"


def parse_times(column: pl.Series, path: Path) -> tuple[pl.Series, str]:
    """`column` as Int64, null where a value is not a time, and its kind (`DATETIME`, `NUMBER`).

    Numbers with a fraction are seconds since the epoch. Text is parsed as integers, numbers or
    datetimes, whichever fits most rows; a datetime without a time zone is UTC. Raises `DataError`
    for columns of another type.
    """
    dtype = column.dtype
    if dtype.is_integer():
        return _integers(column), NUMBER
    if dtype.is_float():
        return _floats(column)
    if dtype == pl.Date or isinstance(dtype, pl.Datetime):
        return column.cast(pl.Datetime("us")).to_physical(), DATETIME
    if dtype == pl.String:
        return _texts(column)
    if dtype == pl.Null:
        return column.cast(pl.Int64), NUMBER
    raise DataError(
        f"{path}: column '{column.name}' has type {dtype}; expected a date, a datetime, "
        "a number or text for the time."
    )


def _integers(column: pl.Series) -> pl.Series:
    return column.cast(pl.Int64, strict=False)


def _floats(column: pl.Series) -> tuple[pl.Series, str]:
    column = column.cast(pl.Float64)
    column = pl.select(pl.when(column.is_finite()).then(column)).to_series()
    if bool((column.floor() == column).all()):
        return column.cast(pl.Int64, strict=False), NUMBER
    return (column * 1e6).round().cast(pl.Int64, strict=False), DATETIME


def _texts(column: pl.Series) -> tuple[pl.Series, str]:
    """Text as integers, numbers or datetimes: the first that fits all rows, or else most."""
    num_present = len(column) - column.null_count()
    best: tuple[pl.Series, str] | None = None
    for kind in (pl.Int64, pl.Float64, pl.Datetime):
        if kind == pl.Datetime:
            found = _datetimes(column), DATETIME
        else:
            numbers = column.cast(kind, strict=False)
            found = (numbers, NUMBER) if kind == pl.Int64 else _floats(numbers)
        num_found = len(column) - found[0].null_count()
        if best is None or num_found > len(column) - best[0].null_count():
            best = found
        if num_found == num_present:
            break
    return best if best is not None else (column.cast(pl.Int64), NUMBER)


def _datetimes(column: pl.Series) -> pl.Series:
    text = column.str.strip_suffix(" UTC")
    try:
        parsed = text.str.to_datetime(time_unit="us", strict=False)
    except pl.exceptions.PolarsError:  # no known date format
        return pl.Series(column.name, [None], dtype=pl.Int64).new_from_index(0, len(column))
    return parsed.to_physical()
