"""Times parsed to int64: datetimes as microseconds since the epoch, integers unchanged."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tapas.data.dates import FEW, YEAR_1, Dates, fits_exchanged, parse_dates, parse_format
from tapas.errors import DataError
from tapas.escapes import short

# kinds of times, as the report of a log names them
DATETIME, NUMBER = "datetime", "number"
FILE_ORDER, TEXT_POSITION = "file order", "place in the text"

READ_WITHOUT_FORMAT = (
    "2024-01-31, 2024-01-31 18:30:00 (also with T, Z or +01:00), 31.01.2024, 1/31/2024, "
    "31 Jan 2024, and numbers"
)
DAY_SECONDS = 86_400
EPOCH_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0.001}  # by unit
SECONDS_FROM_1990_TO_2040 = (631_152_000, 2_208_988_800)
EXCEL_EPOCH = 25_569  # the day 1970-01-01 in spreadsheets
EXCEL_FROM_1990_TO_2040 = (32_874, 51_136)
UNITS = {"days of a spreadsheet": EXCEL_FROM_1990_TO_2040} | {
    f"{name} since 1970": (SECONDS_FROM_1990_TO_2040[0] * unit, SECONDS_FROM_1990_TO_2040[1] * unit)
    for name, unit in (("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6),
                       ("nanoseconds", 10**9))
}  # fmt: skip
YEARS_1_TO_9999 = (YEAR_1, 253_402_300_799_999_999)
DECIMAL_COMMA = r"^\s*(-?[0-9]+),([0-9]+)\s*$"
THOUSANDS = r"^\s*-?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?\s*$"
NEARLY_ALL = 0.95  # of the sample of a column, to be taken for times


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a column, and what its values show about how they are written."""

    values: pl.Series  # Int64, null where a value is not a time
    kind: str  # `DATETIME` or `NUMBER`
    written: str | None = None  # the order of numeric dates, or the unit of numbers
    example: str = ""  # a value that shows it
    notes: tuple[str, ...] = ()


def parse_times(
    column: pl.Series, path: Path, time_format: str | None = None, order: str | None = None
) -> Times:
    """The times in `column`.

    Numbers with a fraction are seconds since the epoch, or days of a spreadsheet if all are within
    1990 to 2040 as such. Text is parsed as integers, numbers or datetimes, whichever fits most
    rows; a datetime without a time zone is UTC. `time_format` is a format of strptime, or the unit
    (s, ms, us, ns) of numbers since the epoch; dates and datetimes need none. `order` is taken for
    dates that do not show whether the day or the month comes first.

    Raises `DataError` for columns of another type or with several units, and
    `UnclearDatesError` for dates with day and month in an order that the column does not tell.
    """
    dtype = column.dtype
    if dtype == pl.Date or isinstance(dtype, pl.Datetime):
        return _bounded(column.cast(pl.Datetime("us"), strict=False).to_physical())
    if dtype == pl.Categorical or dtype == pl.Enum:
        column = column.cast(pl.String)
    elif isinstance(dtype, pl.Decimal):
        column = column.cast(pl.Int128) if dtype.scale == 0 else column.cast(pl.Float64)
    dtype = column.dtype
    if dtype == pl.Null:
        return Times(column.cast(pl.Int64), NUMBER)
    if time_format is not None and (dtype.is_numeric() or dtype == pl.String):
        if time_format in EPOCH_MICROSECONDS:
            return _bounded(_since_epoch(column, time_format, path))
        return _bounded(_formatted(column.cast(pl.String), time_format, path))
    if dtype.is_integer():
        return _numbers(column.cast(pl.Int64, strict=False), path)
    if dtype.is_float():
        return _numbers(column, path)
    if dtype == pl.String:
        return _texts(column, path, order)
    raise DataError(
        f"{path}: column '{column.name}' has type {dtype}; expected a date, a datetime, "
        "a number or text for the time."
    )


def looks_like_times(sample: pl.Series, share: float = NEARLY_ALL) -> bool:
    """Whether a column is of times, judged by its type and its first values, not by its name.

    At least `share` of the values must be times, also if `parse_times` cannot tell day and month
    apart. Numbers are only taken for times if all are seconds or milliseconds within 1990 to 2040:
    prices, ratings and most ids are not.
    """
    if sample.dtype == pl.Date or isinstance(sample.dtype, pl.Datetime):
        return True
    sample = sample.drop_nulls()
    if not len(sample):
        return False
    if sample.dtype == pl.String:
        found = parse_dates(sample, Path()).times
        if len(found) - found.null_count() >= share * len(found):
            return True
        sample = plain_numbers(sample, Path())[0].cast(pl.Float64, strict=False)
    if not sample.dtype.is_numeric() or sample.null_count():
        return False
    low, high = SECONDS_FROM_1990_TO_2040
    return any(bool(sample.is_between(low * unit, high * unit).all()) for unit in (1, 1_000))


def looks_like_numbers(sample: pl.Series) -> bool:
    """Whether all values are numbers."""
    sample = sample.drop_nulls()
    return len(sample) > 0 and not sample.cast(pl.Float64, strict=False).null_count()


def _bounded(times: pl.Series, dates: Dates | None = None) -> Times:
    """Datetimes, null before the year 1 and after 9999."""
    times = pl.select(pl.when(times.is_between(*YEARS_1_TO_9999)).then(times)).to_series()
    if dates is None:
        return Times(times, DATETIME)
    return Times(times, DATETIME, dates.order, dates.example, dates.notes)


def _since_epoch(column: pl.Series, unit: str, path: Path) -> pl.Series:
    """Microseconds, null beyond the year 9999, where the unit is another one."""
    factor = EPOCH_MICROSECONDS[unit]
    column, unclear = plain_numbers(column, path)
    if unclear is not None:
        raise unclear
    numbers = column.cast(pl.Int64, strict=False)
    whole = numbers.null_count() == column.null_count()
    if not whole:
        numbers = column.cast(pl.Float64, strict=False)
    fits = (numbers.cast(pl.Float64) * factor).abs() <= YEARS_1_TO_9999[1]
    numbers = pl.select(pl.when(fits).then(numbers)).to_series()
    if not whole:
        return (numbers * factor).round().cast(pl.Int64, strict=False)
    return numbers // 1_000 if unit == "ns" else numbers * int(factor)


def _formatted(column: pl.Series, time_format: str, path: Path) -> pl.Series:
    """Text of one format. Raises if many values fit it with day and month exchanged."""
    times = parse_format(column, time_format)
    found = fits_exchanged(column, times, time_format)
    if found is None:
        return times
    exchanged, rows = found
    num, num_present = int(rows.sum()), len(column) - column.null_count()
    if num > FEW * num_present:
        row = int(rows.arg_true()[0])
        raise DataError(
            f"{path}: {num:,} of {num_present:,} values of {column.name} do not fit --time-format "
            f"'{time_format}' but '{exchanged}', such as '{column[row]}' in row {row + 1}. Correct "
            "the format or the file."
        )
    return times


def _numbers(column: pl.Series, path: Path) -> Times:
    """Numbers of one unit; raises if nearly all are times from 1990 to 2040, but of several."""
    if column.dtype.is_float():
        column = _finite(column.cast(pl.Float64))
    num_present = len(column) - column.null_count()
    counts = {name: int(column.is_between(*bounds).sum()) for name, bounds in UNITS.items()}
    used = [name for name, number in counts.items() if number]
    unit = example = None
    if used and sum(counts.values()) >= NEARLY_ALL * num_present:
        examples = []
        for name in used:
            row = int(column.is_between(*UNITS[name]).arg_true()[0])
            examples.append(f"{column[row]} in row {row + 1}")
        if len(used) > 1:
            told = [f"{name} ({shown})" for name, shown in zip(used, examples, strict=True)]
            raise DataError(
                f"{path}: {column.name} has {' and '.join(told)}. Write all times in one unit."
            )
        unit, example = used[0], examples[0]
    if not column.dtype.is_float() or bool((column.floor() == column).all()):
        return Times(column.cast(pl.Int64, strict=False), NUMBER, unit, example or "")
    if bool(column.is_between(*EXCEL_FROM_1990_TO_2040).all()):
        milliseconds = ((column - EXCEL_EPOCH) * (DAY_SECONDS * 1000)).round()
        found = _bounded((milliseconds * 1000).cast(pl.Int64))
    else:
        found = _bounded((column * 1e6).round().cast(pl.Int64, strict=False))
    return Times(found.values, DATETIME, unit, example or "")


def _texts(column: pl.Series, path: Path, order: str | None) -> Times:
    """Text as integers, numbers or datetimes: the first that fits all rows, or else most."""
    plain, unclear = plain_numbers(column, path)
    numbers = plain.cast(pl.Int64, strict=False)
    if numbers.null_count() > column.null_count():
        fractions = _finite(plain.cast(pl.Float64, strict=False))
        if fractions.null_count() < numbers.null_count():
            numbers = fractions
    if numbers.null_count() > column.null_count():
        dates = parse_dates(column, path, order)
        if dates.times.null_count() < numbers.null_count():
            if dates.unclear is not None:
                raise dates.unclear
            return _bounded(dates.times, dates)
    if unclear is not None:
        raise unclear
    return _numbers(numbers, path)


def _finite(column: pl.Series) -> pl.Series:
    return pl.select(pl.when(column.is_finite()).then(column)).to_series().alias(column.name)


def plain_numbers(column: pl.Series, path: Path) -> tuple[pl.Series, DataError | None]:
    """Numbers written with commas, 1,5 or 1,000,000, without; and why that is a guess.

    Whether commas stand for decimal points or separate thousands is told by all rows.
    """
    if column.dtype != pl.String or not column.str.contains(",", literal=True).any():
        return column, None
    decimal = column.str.contains(DECIMAL_COMMA).fill_null(False)
    thousands = column.str.contains(THOUSANDS).fill_null(False)
    shown = [(decimal & ~thousands).arg_true(), (thousands & ~decimal).arg_true()]
    unclear = None
    if len(shown[0]) and len(shown[1]):
        one, other = (f"{short(column[rows[0]])} in row {rows[0] + 1}" for rows in shown)
        unclear = DataError(
            f"{path}: {column.name} has commas for decimal points ({one}) and between thousands "
            f"({other}). Write numbers the same way in all rows."
        )
    elif not len(shown[0]) and not len(shown[1]) and decimal.any():
        row = int(decimal.arg_true()[0])
        text = column[row].strip()
        unclear = DataError(
            f"{path}: {column.name} is '{text}' in row {row + 1}, and no row shows whether commas "
            "are decimal points or separate thousands. Write such numbers as "
            f"{text.replace(',', '.')} or {text.replace(',', '')}."
        )
    if len(shown[1]):
        plain = column.str.replace_all(",", "", literal=True).str.strip_chars()
        return pl.select(pl.when(thousands).then(plain).otherwise(column)).to_series(), unclear
    return column.str.replace(DECIMAL_COMMA, "${1}.${2}"), unclear
