"""Dates in a column of text: ISO 8601, numeric (31/1/2024, 1/31/24), or with English months.

Day and month are told apart by all rows of a column, never row by row.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tapas.errors import DataError
from tapas.phrases import counted

ORDERS = DAY_FIRST, MONTH_FIRST = "day first", "month first"
FEW = 0.01  # of the rows: so many may contradict a format that is given, or the months of ISO dates
YEAR_1 = -62_135_596_800_000_000
YEAR_1000 = -30_610_224_000_000_000

ISO = r"^[0-9]{4}[-/.][0-9]"
ISO_FIELDS = r"^[0-9]{4}([-/.])([0-9]{1,2})[-/.]([0-9]{1,2})(?:[^0-9]|$)"
NUMERIC = "|".join(
    rf"^[0-9]{{1,2}}{mark}[0-9]{{1,2}}{mark}(?:[0-9]{{4}}|[0-9]{{2}})(?:[^0-9].*)?$"
    for mark in ("/", "-", r"\.")
)
FIELDS = r"^([0-9]{1,2})([-/.])([0-9]{1,2})[-/.]([0-9]+)(.*)$"
ZONE = r":[0-9]{2}(?:[.,][0-9]+)? ?(?:Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{0,2})$"
SHORT_YEAR = r"^([0-9]{1,2})-[A-Za-z]{3}-([0-9]{2})(|[^0-9].*)$"
TIMES_OF_DAY = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p",
                " %H:%M:%S%z", " %H:%M:%S %z")  # fmt: skip
WITH_NAMED_MONTHS = (
    *(
        date + time
        for date in ("%d-%b-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
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
    """Dates that can be read in two ways, or in none. `problem` is the message without its cure."""

    def __init__(self, problem: str, cure: str):
        super().__init__(f"{problem} {cure}")
        self.problem = problem


@contextmanager
def without_format() -> Iterator[None]:
    """Unclear dates within get a cure for where no --time-format can be given."""
    try:
        yield
    except UnclearDatesError as error:
        raise DataError(f"{error.problem} Write dates as 2024-01-31.") from None


@dataclass(slots=True)
class Dates:
    """The dates of a column, and how they are written."""

    times: pl.Series  # Int64, microseconds since 1970; null where there is no date
    order: str | None = None  # of numeric dates whose order matters: `DAY_FIRST`, `MONTH_FIRST`
    example: str = ""  # that shows the order
    unclear: UnclearDatesError | None = None  # why the order cannot be told; times are then guesses
    notes: tuple[str, ...] = ()


def parse_dates(column: pl.Series, path: Path, order: str | None = None) -> Dates:
    """The dates in `column`; `order` is taken for numeric dates that do not show theirs.

    Dates without a zone are UTC.
    """
    text = column.str.strip_suffix(" UTC").str.strip_chars()
    found = Dates(_only(text, text.str.contains(ISO), _iso))
    kinds = [found.times.is_not_null()]
    _check_iso(text, found, column.name, path)
    if found.times.null_count() > text.null_count():
        rows = (found.times.is_null() & text.str.contains(NUMERIC)).fill_null(False)
        if rows.any():
            _Numeric(text, rows, column.name, path).parse(found, order)
            kinds.append(rows & found.times.is_not_null())
    if found.times.null_count() > text.null_count():
        rows = (found.times.is_null() & text.str.contains(r"[A-Za-z]{3}")).fill_null(False)
        found.times = found.times.fill_null(_only(text, rows, _named_months))
        short_years = rows & found.times.is_null() & text.str.contains(SHORT_YEAR)
        if short_years.any():
            _ShortYears(text, short_years, column.name, path).parse(found, order)
        kinds.append((rows & found.times.is_not_null()).fill_null(False))
    found.notes = _notes(column, found.times, kinds, path)
    return found


def fits_exchanged(
    column: pl.Series, times: pl.Series, time_format: str
) -> tuple[str, pl.Series] | None:
    """Which values that do not fit `time_format` do so with day and month exchanged.

    That format and a mask of the rows; None if there are none.
    """
    if "%d" not in time_format or "%m" not in time_format:
        return None
    exchanged = time_format.replace("%d", "%\0").replace("%m", "%d").replace("%\0", "%m")
    rows = times.is_null() & column.is_not_null()
    if not rows.any():
        return None
    other = _only(column, rows, lambda text: parse_format(text, exchanged)).is_not_null()
    return (exchanged, other) if other.any() else None


def parse_format(text: pl.Series, time_format: str) -> pl.Series:
    """Microseconds of text of one format; %f is a fraction of any length, as in Python."""
    chrono = time_format.replace(".%f", "%.f").replace("%f", "%6f")
    text = text.str.strip_chars()
    if not any(f"%{letter}" in time_format for letter in "deDFjuUVwWaA"):
        has_month = any(f"%{letter}" in time_format for letter in "mbB")
        text = text + (" 1" if has_month else " 1 1")
        chrono += " %d" if has_month else " %m %d"
    return _strptime(text, chrono)


class _SomeDates:
    """Dates in some rows of a column, whose fields may be in one of two orders."""

    def __init__(self, text: pl.Series, rows: pl.Series, name: str, path: Path):
        self._dates = text.filter(rows)
        self._rows = rows.arg_true()
        self._name, self._path = name, path

    def _quoted(self, row: int) -> str:
        return f"'{self._dates[row]}' in row {self._rows[row] + 1}"

    def _neither(self, row: int, tail: str, fields: str, *formats: str) -> UnclearDatesError:
        """The problem that no row shows the order of `fields`; `tail` is the time of day."""
        date = pl.Series([self._dates[row].removesuffix(tail)])
        readings = []
        for time_format in formats:
            day = _strptime(date, time_format).cast(pl.Datetime("us")).dt.to_string("%Y-%m-%d")
            readings.append(f"'{time_format}{_time_of_day(tail)}' ({day[0]})")
        return UnclearDatesError(
            f"{self._path}: {self._name} is {self._quoted(row)}, and no row shows whether {fields} "
            "comes first.",
            f"Say so with --time-format {' or '.join(readings)}.",
        )


class _Numeric(_SomeDates):
    """Dates such as 1/2/2024."""

    def __init__(self, text: pl.Series, rows: pl.Series, name: str, path: Path):
        super().__init__(text, rows, name, path)
        fields = self._dates.str.extract_groups(FIELDS).struct
        self._first = fields.field("1").cast(pl.Int64)
        self._mark, self._year = fields.field("2"), fields.field("4")
        self._second = fields.field("3").cast(pl.Int64)
        self._tail = fields.field("5")

    def parse(self, found: Dates, order: str | None) -> None:
        """Complete `found` by these dates, in one order for all.

        A date that can be read with the day first shows this order if its day is above 12, since
        the month could be no such number; and the other way round.
        """
        day_first = _numeric(self._dates, DAY_FIRST)
        rest = day_first.is_null()
        month_first = _only(self._dates, rest, lambda dates: _numeric(dates, MONTH_FIRST))
        shown = {
            DAY_FIRST: (day_first.is_not_null() & (self._first > 12)).arg_true(),
            MONTH_FIRST: month_first.is_not_null().arg_true(),
        }
        times = day_first
        if len(shown[DAY_FIRST]) and len(shown[MONTH_FIRST]):
            times = day_first.fill_null(month_first)
            found.unclear = found.unclear or self._both(shown)
        elif len(shown[MONTH_FIRST]):
            times = _numeric(self._dates, MONTH_FIRST)
            found.order = MONTH_FIRST
        elif len(shown[DAY_FIRST]):
            found.order = DAY_FIRST
            found.unclear = found.unclear or self._year_first(day_first)
        else:
            differ = (day_first.is_not_null() & (self._first != self._second)).arg_true()
            if order == MONTH_FIRST:
                times = _numeric(self._dates, MONTH_FIRST)
            elif order is None and len(differ):
                found.unclear = found.unclear or self._unshown(
                    differ[0], "the day or the month", "%d %m %y", "%m %d %y"
                )
        if found.order is not None:
            found.example = self._quoted(shown[found.order][0])
        found.times = found.times.scatter(self._rows, times)

    def _unshown(self, row: int, fields: str, *orders: str) -> UnclearDatesError:
        year = "%Y" if len(self._year[row]) == 4 else "%y"
        formats = (o.replace(" ", self._mark[row]).replace("%y", year) for o in orders)
        return self._neither(row, self._tail[row], fields, *formats)

    def _both(self, shown: dict[str, pl.Series]) -> UnclearDatesError:
        day, month = shown[DAY_FIRST], shown[MONTH_FIRST]
        cure = "Correct the file: no format fits both."
        if min(len(day), len(month)) <= FEW * len(self._dates):
            cure = (
                "Correct the file, or name one with --time-format and skip the others with "
                "--skip-bad-rows."
            )
        return UnclearDatesError(
            f"{self._path}: {self._name} has the day first in {counted(len(day), 'row')} "
            f"({self._quoted(day[0])}) and the month first in {len(month):,} "
            f"({self._quoted(month[0])}).",
            cure,
        )

    def _year_first(self, day_first: pl.Series) -> UnclearDatesError | None:
        """The problem of years of two digits that may come first: 24/01/31.

        Days have more different values than years, or else they may be years.
        """
        short = self._year.str.len_chars() == 2
        as_year = (self._year.cast(pl.Int64).is_between(1, 31) & (self._second <= 12)) | ~short
        if not short.any() or not as_year.all():
            return None
        first, last = self._first.filter(short), self._year.filter(short)
        if first.n_unique() > last.n_unique():
            return None
        row = int((short & day_first.is_not_null()).arg_true()[0])
        return self._unshown(row, "the day or the year", "%d %m %y", "%y %m %d")


class _ShortYears(_SomeDates):
    """Dates such as 21-Jan-05: the day comes first, or the year."""

    def parse(self, found: Dates, order: str | None) -> None:
        """Complete `found` by these dates, in one order for all.

        Where both orders fit all rows, days have more different values than years.
        """
        day_first, year_first = (
            _first_that_fit(self._dates, [date + time for time in TIMES_OF_DAY])
            for date in ("%d-%b-%y", "%y-%b-%d")
        )
        shows_day = (day_first.is_not_null() & year_first.is_null()).arg_true()
        shows_year = (day_first.is_null() & year_first.is_not_null()).arg_true()
        both = (day_first.is_not_null() & year_first.is_not_null()).arg_true()
        times = day_first
        if len(shows_day) and len(shows_year):
            times = day_first.fill_null(year_first)
            found.unclear = found.unclear or UnclearDatesError(
                f"{self._path}: {self._name} has the day first in "
                f"{counted(len(shows_day), 'row')} ({self._quoted(shows_day[0])}) and the year "
                f"first in {len(shows_year):,} ({self._quoted(shows_year[0])}).",
                "Correct the file: no format fits both.",
            )
        elif len(shows_year):
            times = year_first
        elif len(shows_day) or (len(both) and self._more_days()):
            if found.order is None:
                found.order = DAY_FIRST
                found.example = self._quoted(int((*shows_day, *both)[0]))
        elif len(both) and order != DAY_FIRST:
            tail = self._dates.str.extract(SHORT_YEAR, 3)[both[0]]
            found.unclear = found.unclear or self._neither(
                both[0], tail, "the day or the year", "%d-%b-%y", "%y-%b-%d"
            )
        found.times = found.times.scatter(self._rows, times)

    def _more_days(self) -> bool:
        first, last = (self._dates.str.extract(SHORT_YEAR, group) for group in (1, 2))
        return first.n_unique() > last.n_unique()


def _check_iso(text: pl.Series, found: Dates, name: str, path: Path) -> None:
    """Find the problem of dates with the year first and the day second: 2024-31-01."""
    bad = (found.times.is_null() & text.str.contains(ISO)).fill_null(False)
    if not bad.any():
        return
    fields = text.filter(bad).str.extract_groups(ISO_FIELDS).struct
    second = fields.field("2").cast(pl.Int64)
    third = fields.field("3").cast(pl.Int64)
    exchanged = (second.is_between(13, 31) & third.is_between(1, 12)).fill_null(False)
    good = found.times.is_not_null()
    num_good, num_exchanged = int(good.sum()), int(exchanged.sum())
    if num_exchanged <= FEW * (num_good + num_exchanged):
        return
    rows = bad.arg_true().filter(exchanged)
    row, mark = int(rows[0]), fields.field("1").filter(exchanged)[0]
    problem = f"{path}: {name} is '{text[row]}' in row {row + 1}, with the day before the month"
    days = text.filter(good).str.extract(ISO_FIELDS, 3).cast(pl.Int64) > 12
    if days.any():
        other = int(good.arg_true()[int(days.arg_true()[0])])
        problem += f", but '{text[other]}' in row {other + 1}."
        cure = "Correct the file: no format fits both."
    else:
        problem += "."
        cure = f"If that is right, say --time-format '{mark.join(('%Y', '%d', '%m'))}'."
    found.unclear = UnclearDatesError(problem, cure)
    found.times = found.times.scatter(rows, 0)


def _notes(
    column: pl.Series, times: pl.Series, kinds: list[pl.Series], path: Path
) -> tuple[str, ...]:
    """Remarks on dates that are written in several ways, and on zones that only some have."""
    notes = []
    ways = [(int(rows.sum()), rows.arg_true()) for rows in kinds if rows.any()]
    if len(ways) > 1:
        shown = [f"{num:,} as '{column[int(rows[0])]}'" for num, rows in ways]
        notes.append(f"times are written in {len(ways)} ways in {path}: {', '.join(shown)}")
    zoned = int(column.str.contains(ZONE).filter(times.is_not_null()).sum())
    num_times = len(times) - times.null_count()
    if 0 < zoned < num_times:
        notes.append(
            f"{zoned:,} of {num_times:,} times in {path} have a time zone; the others are read as "
            "UTC"
        )
    return tuple(notes)


def _time_of_day(tail: str) -> str:
    """The format of what follows a date, for a message."""
    found = (form for form in TIMES_OF_DAY if _strptime(
        pl.Series([f"2024-01-01{tail}"]), f"%Y-%m-%d{form}")[0] is not None)  # fmt: skip
    return next(found, " %H:%M:%S")


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
        found = text.str.to_datetime(time_unit="us", strict=False).to_physical()
    except pl.exceptions.PolarsError:  # no known format
        return _nulls(text)
    return _from(YEAR_1, found)


def _numeric(dates: pl.Series, order: str) -> pl.Series:
    fields = ("%d", "%m") if order == DAY_FIRST else ("%m", "%d")
    formats = [
        mark.join((*fields, year)) + time
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
    return _from(YEAR_1000, found)


def _from(first: int, times: pl.Series) -> pl.Series:
    return pl.select(pl.when(times >= first).then(times)).to_series()


def _nulls(column: pl.Series) -> pl.Series:
    return pl.Series(column.name, [None], dtype=pl.Int64).new_from_index(0, len(column))
