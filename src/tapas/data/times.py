"""Times parsed to int64: datetimes as microseconds since the epoch, integers unchanged."""

from collections.abc import Callable, Iterable
from pathlib import Path

import polars as pl

from tapas.errors import DataError

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
MAX_MICROSECONDS = 250_000_000_000_000_000  # just before the year 9999
YEAR_1000 = -30_610_224_000_000_000
NEARLY_ALL = 0.95  # of the sample of a column, to be taken for times

ISO = r"^\d{4}[-/.]\d"
NUMERIC_DATE = r"^(\d{1,2})([-/.])(\d{1,2})[-/.](\d{4}|\d{2})(\D.*)?$"
TIMES_OF_DAY = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p",
                " %H:%M:%S%z", " %H:%M:%S %z")  # fmt: skip
WITH_NAMED_MONTHS = (
    *(
        date + time
        for date in ("%d-%b-%y", "%d-%b-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
                     "%d. %B %Y", "%Y-%b-%d")
        for time in TIMES_OF_DAY
    ),
    "%a, %d %b %Y %H:%M:%S %z",
    "%a, %d %b %Y %H:%M:%S GMT",
    "%a %b %d %H:%M:%S %z %Y",
    "%a %b %d %H:%M:%S %Y",
    "%d/%b/%Y:%H:%M:%S %z",
)  # fmt: skip


class UnclearDatesError(DataError):
    """Dates that are read in two ways: day or month first."""


def parse_times(
    column: pl.Series, path: Path, time_format: str | None = None
) -> tuple[pl.Series, str]:
    """`column` as Int64, null where a value is not a time, and its kind (`DATETIME`, `NUMBER`).

    Numbers with a fraction are seconds since the epoch, or days of a spreadsheet if all are within
    1990 to 2040 as such. Text is parsed as integers, numbers or datetimes, whichever fits most
    rows; a datetime without a time zone is UTC. `time_format` is a format of strptime, or the unit
    (s, ms, us, ns) of numbers since the epoch; dates and datetimes need none.

    Raises `DataError` for columns of another type, and for dates with day and month in an order
    that the column does not tell.
    """
    dtype = column.dtype
    if dtype == pl.Date or isinstance(dtype, pl.Datetime):
        return column.cast(pl.Datetime("us")).to_physical(), DATETIME
    if dtype == pl.Categorical or dtype == pl.Enum:
        column = column.cast(pl.String)
    elif isinstance(dtype, pl.Decimal):
        column = column.cast(pl.Int128) if dtype.scale == 0 else column.cast(pl.Float64)
    dtype = column.dtype
    if dtype == pl.Null:
        return column.cast(pl.Int64), NUMBER
    if time_format is not None and (dtype.is_numeric() or dtype == pl.String):
        if time_format in EPOCH_MICROSECONDS:
            return _since_epoch(column, time_format), DATETIME
        return _formatted(column.cast(pl.String), time_format), DATETIME
    if dtype.is_integer():
        return column.cast(pl.Int64, strict=False), NUMBER
    if dtype.is_float():
        return _floats(column)
    if dtype == pl.String:
        return _texts(column, path)
    raise DataError(
        f"{path}: column '{column.name}' has type {dtype}; expected a date, a datetime, "
        "a number or text for the time."
    )


def looks_like_times(sample: pl.Series, share: float = NEARLY_ALL) -> bool:
    """Whether a column is of times, judged by its type and its first values, not by its name.

    At least `share` of the values must be times.
    Numbers are only taken for times if all are seconds or milliseconds within 1990 to 2040:
    prices, ratings and most ids are not.
    """
    if sample.dtype == pl.Date or isinstance(sample.dtype, pl.Datetime):
        return True
    sample = sample.drop_nulls()
    if not len(sample):
        return False
    if sample.dtype == pl.String:
        numbers = sample.cast(pl.Float64, strict=False)
        if numbers.null_count() == len(sample):
            try:
                found = _datetimes(sample, Path())
            except UnclearDatesError:
                return True
            return len(found) - found.null_count() >= share * len(found)
        sample = numbers
    if not sample.dtype.is_numeric() or sample.null_count():
        return False
    low, high = SECONDS_FROM_1990_TO_2040
    return any(bool(sample.is_between(low * unit, high * unit).all()) for unit in (1, 1_000))


def looks_like_numbers(sample: pl.Series) -> bool:
    """Whether all values are numbers."""
    sample = sample.drop_nulls()
    return len(sample) > 0 and not sample.cast(pl.Float64, strict=False).null_count()


def _since_epoch(column: pl.Series, unit: str) -> pl.Series:
    """Microseconds, null beyond the year 9999, where the unit is another one."""
    factor = EPOCH_MICROSECONDS[unit]
    numbers = column.cast(pl.Int64, strict=False)
    whole = numbers.null_count() == column.null_count()
    if not whole:
        numbers = decimal_points(column).cast(pl.Float64, strict=False)
    fits = (numbers.cast(pl.Float64) * factor).abs() <= MAX_MICROSECONDS
    numbers = pl.select(pl.when(fits).then(numbers)).to_series()
    if not whole:
        return (numbers * factor).round().cast(pl.Int64, strict=False)
    return numbers // 1_000 if unit == "ns" else numbers * int(factor)


def _formatted(column: pl.Series, time_format: str) -> pl.Series:
    """Text of one format; %f is taken as Python takes it, as a fraction of any length."""
    chrono = time_format.replace(".%f", "%.f").replace("%f", "%6f")
    return _strptime(column.str.strip_chars(), chrono)


def _floats(column: pl.Series) -> tuple[pl.Series, str]:
    column = column.cast(pl.Float64)
    column = pl.select(pl.when(column.is_finite()).then(column)).to_series()
    if bool((column.floor() == column).all()):
        return column.cast(pl.Int64, strict=False), NUMBER
    if bool(column.is_between(*EXCEL_FROM_1990_TO_2040).all()):
        milliseconds = ((column - EXCEL_EPOCH) * (DAY_SECONDS * 1000)).round()
        return (milliseconds * 1000).cast(pl.Int64), DATETIME
    return (column * 1e6).round().cast(pl.Int64, strict=False), DATETIME


def _texts(column: pl.Series, path: Path) -> tuple[pl.Series, str]:
    """Text as integers, numbers or datetimes: the first that fits all rows, or else most."""
    num_present = len(column) - column.null_count()
    best: tuple[pl.Series, str] | None = None
    for kind in (pl.Int64, pl.Float64, pl.Datetime):
        if kind == pl.Datetime:
            found = _datetimes(column, path), DATETIME
        elif kind == pl.Int64:
            found = column.cast(kind, strict=False), NUMBER
        else:
            found = _floats(decimal_points(column).cast(kind, strict=False))
        num_found = len(column) - found[0].null_count()
        if best is None or num_found > len(column) - best[0].null_count():
            best = found
        if num_found == num_present:
            break
    return best if best is not None else (column.cast(pl.Int64), NUMBER)


def decimal_points(column: pl.Series) -> pl.Series:
    """Numbers written with a decimal comma, with a point."""
    if column.dtype != pl.String or not column.str.contains(",", literal=True).any():
        return column
    return column.str.replace(r"^\s*(-?\d+),(\d+)\s*$", "${1}.${2}")


def _datetimes(column: pl.Series, path: Path) -> pl.Series:
    """Datetimes as microseconds; ISO 8601, numeric dates, and dates with English months."""
    text = column.str.strip_suffix(" UTC").str.strip_chars()
    times = _only(text, text.str.contains(ISO), _iso)
    if times.null_count() > text.null_count():
        rest = times.is_null() & text.str.contains(NUMERIC_DATE)
        day_first = _day_first(text.filter(rest), column, rest, path)
        times = times.fill_null(_only(text, rest, lambda dates: _numeric(dates, day_first)))
    if times.null_count() > text.null_count():
        rest = times.is_null() & text.str.contains(r"[A-Za-z]{3}")
        times = times.fill_null(_only(text, rest, _named_months))
    return times


def _only(text: pl.Series, rows: pl.Series, parse: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """`parse` applied to the values in `rows`; null elsewhere."""
    rows = rows.fill_null(False)
    if not rows.any():
        return _nulls(text)
    if rows.all():
        return parse(text)
    found = _nulls(text)
    return found.scatter(rows.arg_true(), parse(text.filter(rows)))


def _iso(text: pl.Series) -> pl.Series:
    """A format is found by polars from the first value; the rest may have another, or a zone."""
    times = _inferred(text)
    for _ in range(3):
        if times.null_count() == text.null_count():
            break
        rest = (times.is_null() & text.is_not_null()).arg_true()
        plain = text.gather(rest).str.replace(r" ([+-]\d\d:?\d\d)$", "$1")
        times = times.scatter(rest, _inferred(plain.str.replace(r"(:\d\d),(\d)", "$1.$2")))
    return times


def _inferred(text: pl.Series) -> pl.Series:
    try:
        return text.str.to_datetime(time_unit="us", strict=False).to_physical()
    except pl.exceptions.PolarsError:  # no known format
        return _nulls(text)


def _day_first(dates: pl.Series, column: pl.Series, rows: pl.Series, path: Path) -> bool:
    """Whether days stand before months, in all of `dates`: by a day above 12, or by dots."""
    first = dates.str.extract(NUMERIC_DATE, 1).cast(pl.Int64)
    second = dates.str.extract(NUMERIC_DATE, 3).cast(pl.Int64)
    days_first = (first.is_between(13, 31) & (second <= 12)).arg_true()
    months_first = (second.is_between(13, 31) & (first <= 12)).arg_true()
    number = rows.fill_null(False).arg_true()

    def quote(row: int) -> str:
        return f"'{dates[row]}' in row {number[row] + 1}"

    if len(days_first) and len(months_first):
        raise UnclearDatesError(
            f"{path}: {column.name} has the day first ({quote(days_first[0])}) and the month "
            f"first ({quote(months_first[0])}). Correct the file, or name one with --time-format "
            "and skip the others with --skip-bad-rows."
        )
    if len(days_first) or len(months_first):
        return len(days_first) > 0
    separators = dates.str.extract(NUMERIC_DATE, 2).unique()
    if not len(dates) or separators.to_list() == ["."]:
        return True
    mark, year = dates.str.extract(NUMERIC_DATE, 2)[0], dates.str.extract(NUMERIC_DATE, 4)[0]
    formats = [mark.join((*order, "%Y" if len(year) == 4 else "%y")) for order in
               (("%d", "%m"), ("%m", "%d"))]  # fmt: skip
    tail = dates.str.extract(NUMERIC_DATE, 5)[0]
    if tail:
        formats = [f"{form}{_time_of_day(tail)}" for form in formats]
    raise UnclearDatesError(
        f"{path}: {column.name} is {quote(0)}, and no row shows whether the day or the month comes "
        f"first. Say so with --time-format '{formats[0]}' or '{formats[1]}'."
    )


def _time_of_day(tail: str) -> str:
    """The format of what follows a date, for a message."""
    found = (form for form in TIMES_OF_DAY if _strptime(
        pl.Series([f"2024-01-01{tail}"]), f"%Y-%m-%d{form}")[0] is not None)  # fmt: skip
    return next(found, " %H:%M:%S")


def _numeric(dates: pl.Series, day_first: bool) -> pl.Series:
    order = ("%d", "%m") if day_first else ("%m", "%d")
    formats = [
        mark.join((*order, year)) + time
        for mark in "/.-"
        for year in ("%Y", "%y")
        for time in TIMES_OF_DAY
    ]
    if dates.str.contains(r"\d[T,]").any():
        dates = dates.str.replace(r"(\d)(?:T|, ?)(\d)", "$1 $2")
    return _first_that_fit(dates, formats)


def _named_months(text: pl.Series) -> pl.Series:
    return _first_that_fit(text, WITH_NAMED_MONTHS)


def _first_that_fit(text: pl.Series, formats: Iterable[str]) -> pl.Series:
    """Each value by one of `formats`; those that fit the first values are tried first."""
    times, start = _nulls(text), text.drop_nulls().head(100)
    for form in sorted(formats, key=lambda form: _strptime(start, form).null_count()):
        rest = (times.is_null() & text.is_not_null()).arg_true()
        if not len(rest):
            break
        times = times.scatter(rest, _strptime(text.gather(rest), form))
    return times


def _strptime(text: pl.Series, chrono: str) -> pl.Series:
    """Microseconds by a format of chrono, null where it does not fit, as %Y does not fit 24."""
    try:
        found = text.str.to_datetime(chrono, time_unit="us", strict=False).to_physical()
    except pl.exceptions.PolarsError:
        return _nulls(text)
    return pl.select(pl.when(found >= YEAR_1000).then(found)).to_series()


def _nulls(column: pl.Series) -> pl.Series:
    return pl.Series(column.name, [None], dtype=pl.Int64).new_from_index(0, len(column))
