"""The rows of a log that fulfil all conditions of --where, counted over all files."""

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import polars as pl

from tapas.data.dates import UnclearDatesError
from tapas.data.log_options import Condition, parse_condition
from tapas.data.times import DATETIME, NUMBER, parse_times, plain_numbers
from tapas.errors import DataError, UsageError

COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
MAX_VALUES = 10_000  # distinct values of a file that are kept for messages
MAX_SHOWN = 5


@dataclass(slots=True)
class _Seen:
    """What was found in the column of a condition."""

    values: set[str] = field(default_factory=set)  # of the condition, that occur
    counts: Counter[str] = field(default_factory=Counter)
    low: object = None
    high: object = None


class RowFilter:
    """Chooses rows file by file; `check` at the end knows which conditions never applied."""

    def __init__(self, where: Sequence[str], time_format: str | None, order: str | None = None):
        self.conditions = [parse_condition(text) for text in where]
        self._format, self._order = time_format, order
        self._seen = [_Seen() for _ in self.conditions]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(condition.column for condition in self.conditions))

    def choose(self, rows: pl.DataFrame, path: Path, time: str | None) -> pl.Series:
        """A mask of the rows that fulfil all conditions; `time` is the time column."""
        mask = pl.Series([True]).new_from_index(0, rows.height)
        for condition, seen in zip(self.conditions, self._seen, strict=True):
            column = rows[condition.column]
            if condition.operator in COMPARE:
                mask &= self._compared(condition, column, seen, path, column.name == time)
                continue
            text = _as_text(column)
            common = text.value_counts(sort=True).head(MAX_VALUES)
            seen.counts.update(dict(common.drop_nulls().iter_rows()))
            equal = pl.Series([False]).new_from_index(0, rows.height)
            for value in condition.values:
                same = _equal(condition, column, text, value)
                if same.any():
                    seen.values.add(value)
                equal |= same
            mask &= equal if condition.operator == "=" else ~equal
        return mask

    def check(self, num_rows: int, num_chosen: int) -> None:
        """Raise `UsageError` if a value occurs nowhere, or no row is left of `num_rows`."""
        for condition, seen in zip(self.conditions, self._seen, strict=True):
            if condition.operator in COMPARE:
                continue
            for value in condition.values:
                if value not in seen.values and value != "":
                    raise UsageError(_unknown(condition, value, seen.counts))
        if num_chosen or not num_rows:
            return
        told = [
            f"{condition.column} is from {seen.low} to {seen.high}"
            for condition, seen in zip(self.conditions, self._seen, strict=True)
            if seen.low is not None
        ]
        given = " ".join(f"--where {condition.text!r}" for condition in self.conditions)
        raise UsageError(
            f"{given} leaves none of {num_rows:,} rows{': ' if told else ''}{', '.join(told)}. "
            f"{'Leave one of them out.' if len(self.conditions) > 1 else 'Choose another value.'}"
        )

    def _compared(
        self, condition: Condition, column: pl.Series, seen: _Seen, path: Path, is_time: bool
    ) -> pl.Series:
        """Rows above or below a number, or before or after a time."""
        (value,) = condition.values
        compare = COMPARE[condition.operator]
        bound = _number(value)
        if bound is not None:
            numbers = _as_numbers(condition, column, path)
            seen.low, seen.high = _extended(seen, numbers.min(), numbers.max())
            mask: pl.Series = compare(numbers, bound)
            return mask.fill_null(False)
        limit = _moment(condition.text, value)
        if limit is None:
            raise UsageError(
                f"--where {condition.text!r}: {value!r} is neither a number nor a time such as "
                "2024-01-31 or '2024-01-31 18:30'."
            )
        form = self._format if is_time else None
        found = parse_times(column, path, form, self._order if is_time else None)
        if found.kind != DATETIME:
            raise UsageError(
                f"--where {condition.text!r}: {column.name} has numbers in {path}, such as "
                f"{column.drop_nulls().head(1).to_list()[0]}, not times. Compare it with a number, "
                "or say what they are with --time-format s (or ms, us, ns)."
            )
        times = found.values
        shown = times.cast(pl.Datetime("us")).dt.to_string("%Y-%m-%d %H:%M:%S")
        seen.low, seen.high = _extended(seen, shown.min(), shown.max())
        mask = compare(times, limit)
        return mask.fill_null(False)


def _as_text(column: pl.Series) -> pl.Series:
    """Values as they are typed behind --where."""
    if column.dtype.is_nested() or column.dtype == pl.Binary:
        raise UsageError(
            f"--where: column '{column.name}' has type {column.dtype}; expected text or numbers."
        )
    return column.cast(pl.String)


def _equal(condition: Condition, column: pl.Series, text: pl.Series, value: str) -> pl.Series:
    if value == "":
        return text.is_null() | (text == "")
    number = _number(value)
    if column.dtype.is_numeric() and number is not None:
        same = column == number
    elif column.dtype == pl.Boolean:
        same = text == value.lower()
    elif isinstance(column.dtype, pl.Datetime):
        times = parse_times(column, Path()).values
        same = times == _moment(condition.text, value)
    else:
        same = text == value
    return same.fill_null(False)


def _moment(condition: str, value: str) -> int | None:
    """The time that is `value`, None if it is none."""
    try:
        found = parse_times(pl.Series([value]), Path())
    except UnclearDatesError:
        raise UsageError(
            f"--where {condition!r}: {value!r} does not show whether the day or the month comes "
            "first. Write it as 2024-01-31."
        ) from None
    except DataError:  # 1,500
        return None
    return None if found.kind == NUMBER else found.values[0]


def _as_numbers(condition: Condition, column: pl.Series, path: Path) -> pl.Series:
    """The column as numbers. Raises at a value that is none."""
    if column.dtype.is_numeric():
        return column
    text = _as_text(column)
    present = text.is_not_null() & (text != "")
    whole = text.cast(pl.Int64, strict=False)
    if not (whole.is_null() & present).any():
        return whole
    plain, unclear = plain_numbers(text, path)
    numbers = plain.cast(pl.Float64, strict=False)
    bad = (numbers.is_null() & present).arg_true()
    if len(bad):
        raise DataError(
            f"{path}, row {bad[0] + 1}: {column.name} is {column[bad[0]]!r}, which --where "
            f"{condition.text!r} cannot compare with a number. Choose by = or !=, or correct the "
            "file."
        )
    if unclear is not None:
        raise unclear
    return numbers


def _number(value: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return None


def _extended(seen: _Seen, low: object, high: object) -> tuple[object, object]:
    lows = [value for value in (seen.low, low) if value is not None]
    highs = [value for value in (seen.high, high) if value is not None]
    return min(lows, default=None), max(highs, default=None)  # type: ignore[type-var]


def _unknown(condition: Condition, value: str, counts: Counter[str]) -> str:
    close = get_close_matches(value.lower(), [name.lower() for name in counts], n=1)
    names = {name.lower(): name for name in counts}
    hint = f" Did you mean '{names[close[0]]}'?" if close else ""
    common = counts.most_common(MAX_SHOWN)
    shown = ", ".join(f"{name} ({number:,})" for name, number in common)
    rest = f" and {len(counts) - len(common):,} others" if len(counts) > len(common) else ""
    return (
        f"--where {condition.text!r}: no row has the {condition.column} {value!r}.{hint} "
        f"Most frequent: {shown}{rest}."
    )
