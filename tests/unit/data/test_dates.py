"""Dates of a column are read in one order of day and month, told by all its rows, or refused."""

from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st

from tapas import DataError
from tapas.data import LogSource
from tapas.data.dates import UnclearDatesError
from tapas.data.raw_events import read_events
from tapas.data.times import looks_like_times, parse_times

FILE = Path("a.csv")
EPOCH = datetime(1970, 1, 1)


def read(values, **options):
    """Each value as an ISO date, None where there is none."""
    found = parse_times(pl.Series("t", values), FILE, **options)
    assert found.kind == "datetime"
    times = [None if us is None else EPOCH + timedelta(microseconds=us) for us in found.values]
    return [None if time is None else time.isoformat(sep=" ") for time in times]


@pytest.mark.parametrize(
    ("values", "want"),
    [
        (["1/2/2021"] * 300 + ["13/2/2021"], ["2021-02-01"] * 300 + ["2021-02-13"]),
        (["1/2/2021"] * 300 + ["2/13/2021"], ["2021-01-02"] * 300 + ["2021-02-13"]),
        (["2021-01-02", "3/4/2021", "x", "4/13/2021"],
         ["2021-01-02", "2021-03-04", None, "2021-04-13"]),
        (["1/1/2021", "7/7/2021"], ["2021-01-01", "2021-07-07"]),  # the same in both orders
        (["13/13/2021", "31/4/2021", "1/13/2021"], [None, None, "2021-01-13"]),
        (["29/2/2020", "29/2/2021"], ["2020-02-29", None]),
        (["1/13/21", "1/13/70", "1/13/69"], ["2021-01-13", "1970-01-13", "2069-01-13"]),
        (["13/3/24", "14/3/24"], ["2024-03-13", "2024-03-14"]),  # more days than years
        (["21-Jan-05", "22-Jan-05"], ["2005-01-21", "2005-01-22"]),
        (["05-Jan-21", "05-Feb-45", "x-Jan-1"], ["2021-01-05", "2045-02-05", None]),
        (["05-Jan-21", "45-Feb-05"], ["2005-01-21", "2045-02-05"]),
        (["5 Jan 2021", "Jan 6, 2021", "2021-01-07"], ["2021-01-05", "2021-01-06", "2021-01-07"]),
        (["0000-01-01", "0001-01-01", "9999-12-31"], [None, "0001-01-01", "9999-12-31"]),
        (["2021-13-01"] + ["2021-01-31"] * 99, [None] + ["2021-01-31"] * 99),  # a typing error
        (["nan", "2021-01-01"], [None, "2021-01-01"]),
    ],
)  # fmt: skip
def test_dates_are_read_in_the_order_that_all_rows_show(values, want):
    assert read(values) == [None if day is None else f"{day} 00:00:00" for day in want]


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("2016-12-31 23:59:60", "2017-01-01 00:00:00"),
        ("2021-01-01 24:00:00", None),
        ("2021-01-01T10:00:00+02:00", "2021-01-01 08:00:00"),
        ("2021-01-01 10:00:00 CET", None),
        ("1969-12-31 23:59:59", "1969-12-31 23:59:59"),
        ("13/1/2021, 6:30 PM", "2021-01-13 18:30:00"),
    ],
)
def test_times_of_day(value, want):
    assert read(["2021-01-01", value])[1] == want


@pytest.mark.parametrize("values", [["18:30", "19:45"], ["6:30 PM"], ["٣/٤/2021"], ["10.1.12.5"]])
def test_times_without_dates_and_the_like_are_no_times(values):
    assert parse_times(pl.Series("t", values), FILE).values.null_count() == len(values)
    assert not looks_like_times(pl.Series("t", values))


REFUSED = [
    (["01.02.2021"],
     "a.csv: t is '01.02.2021' in row 1, and no row shows whether the day or the month comes "
     "first. Say so with --time-format '%d.%m.%Y' (2021-02-01) or '%m.%d.%Y' (2021-01-02)."),
    (["7/7/2021", "2021-01-13", "1/2/2021 6:30 PM"],
     "a.csv: t is '1/2/2021 6:30 PM' in row 3, and no row shows whether the day or the month comes "
     "first. Say so with --time-format '%d/%m/%Y %I:%M %p' (2021-02-01) or '%m/%d/%Y %I:%M %p' "
     "(2021-01-02)."),
    (["24/01/31", "24/02/28"],
     "a.csv: t is '24/01/31' in row 1, and no row shows whether the day or the year comes first. "
     "Say so with --time-format '%d/%m/%y' (2031-01-24) or '%y/%m/%d' (2024-01-31)."),
    (["13/1/2021", "1/13/2021", "1/2/2021"],
     "a.csv: t has the day first in 1 row ('13/1/2021' in row 1) and the month first in 1 "
     "('1/13/2021' in row 2). Correct the file: no format fits both."),
    (["1/13/2021"] * 99 + ["13/1/2021"],
     "a.csv: t has the day first in 1 row ('13/1/2021' in row 100) and the month first in 99 "
     "('1/13/2021' in row 1). Correct the file, or name one with --time-format and skip the others "
     "with --skip-bad-rows."),
    (["21-Jan-05 10:30", "05-Feb-21 10:30"],
     "a.csv: t is '21-Jan-05 10:30' in row 1, and no row shows whether the day or the year comes "
     "first. Say so with --time-format '%d-%b-%y %H:%M' (2005-01-21) or '%y-%b-%d %H:%M' "
     "(2021-01-05)."),
    (["21-Jan-45", "05-Jan-21", "45-Jan-21"],
     "a.csv: t has the day first in 1 row ('21-Jan-45' in row 1) and the year first in 1 "
     "('45-Jan-21' in row 3). Correct the file: no format fits both."),
    (["2021-02-01", "2021-13-01"],
     "a.csv: t is '2021-13-01' in row 2, with the day before the month. If that is right, say "
     "--time-format '%Y-%d-%m'."),
    (["2021/02/13", "2021/13/01"],
     "a.csv: t is '2021/13/01' in row 2, with the day before the month, but '2021/02/13' in row 1. "
     "Correct the file: no format fits both."),
]  # fmt: skip


@pytest.mark.parametrize(("values", "words"), REFUSED)
def test_unclear_dates_are_refused_with_both_readings(values, words):
    with raises_text(words, UnclearDatesError):
        parse_times(pl.Series("t", values), FILE)
    assert looks_like_times(pl.Series("t", values))


def test_an_order_that_is_known_is_taken_only_where_the_dates_show_none():
    assert read(["1/2/2021"], order="month first") == ["2021-01-02 00:00:00"]
    assert read(["1/2/2021"], order="day first") == ["2021-02-01 00:00:00"]
    assert read(["1/2/2021", "13/2/2021"], order="month first")[0] == "2021-02-01 00:00:00"
    assert read(["05-Jan-21"], order="day first") == ["2021-01-05 00:00:00"]
    assert parse_times(pl.Series("t", ["21-Jan-05", "22-Jan-05"]), FILE).written == "day first"


def test_a_format_with_day_and_month_exchanged_is_named():
    words = (
        "a.csv: 2 of 3 values of t do not fit --time-format '%d/%m/%Y' but '%m/%d/%Y', such as "
        "'1/13/2021' in row 2. Correct the format or the file."
    )
    with raises_text(words, DataError):
        read(["1/2/2021", "1/13/2021", "1/31/2021"], time_format="%d/%m/%Y")
    few = ["1/2/2021"] * 99 + ["1/13/2021"]
    assert read(few, time_format="%d/%m/%Y")[98:] == ["2021-02-01 00:00:00", None]


@pytest.mark.parametrize(
    ("value", "time_format", "want"),
    [
        ("1/2021", "%m/%Y", "2021-01-01"),
        ("May 2021", "%b %Y", "2021-05-01"),
        ("2021", "%Y", "2021-01-01"),
        ("31.12.99", "%d.%m.%y", "1999-12-31"),
    ],
)
def test_formats_without_a_day_are_the_first_of_the_month(value, time_format, want):
    assert read([value], time_format=time_format) == [f"{want} 00:00:00"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1_610_532_000, 1_610_532_000_000],
         "a.csv: t has seconds since 1970 (1610532000 in row 1) and milliseconds since 1970 "
         "(1610532000000 in row 2). Write all times in one unit."),
        (["1610532000000000", "1610532000000000000"],
         "a.csv: t has microseconds since 1970 (1610532000000000 in row 1) and nanoseconds since "
         "1970 (1610532000000000000 in row 2). Write all times in one unit."),
        ([44_209.5, 1_610_532_000.25],
         "a.csv: t has days of a spreadsheet (44209.5 in row 1) and seconds since 1970 "
         "(1610532000.25 in row 2). Write all times in one unit."),
    ],
)  # fmt: skip
def test_numbers_of_several_units_are_refused(values, words):
    with raises_text(words, DataError):
        parse_times(pl.Series("t", values), FILE)


@pytest.mark.parametrize(
    "column",
    [
        pl.Series([2**62, 0]).cast(pl.Datetime("ms")),
        pl.Series([2**62, 0]).cast(pl.Datetime("us")),
        pl.Series([2**31 - 1, 0], dtype=pl.Int32).cast(pl.Date),
    ],
)
def test_dates_beyond_the_year_9999_are_no_times(column):
    assert parse_times(column, FILE).values.to_list() == [None, 0]


# ---- logs of files


def log(folder, **files):
    for name, dates in files.items():
        rows = "".join(f"u{n},{n},{date}\n" for n, date in enumerate(dates))
        (folder / f"{name}.csv").write_text(f"user,item,date\n{rows}")
    return tuple(f"{name}.csv" for name in files)


def events(files, **options):
    return read_events(LogSource(files=files, **options), lambda text: None)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_files_of_a_log_that_disagree_are_refused(tmp_path):
    words = (
        "b.csv: date is written month first ('1/13/2021' in row 2), but day first ('13/1/2021' in "
        "row 1 of a.csv). Write times the same way in all files."
    )
    with raises_text(words, DataError):
        events(log(tmp_path, a=["13/1/2021"], b=["1/2/2021", "1/13/2021"]))
    words = (
        "d.csv: date is written in milliseconds since 1970 (1610532000000 in row 1), but in "
        "seconds since 1970 (1610532000 in row 1 of c.csv). Write times the same way in all files."
    )
    with raises_text(words, DataError):
        events(log(tmp_path, c=[1_610_532_000], d=[1_610_532_000_000]))
    report = events(log(tmp_path, a=["13/1/2021"], e=["14/1/2021", "2/1/2021"])).report
    assert (report["rows"], report["date_order"]) == (3, "day first")


def test_dates_that_are_written_in_several_ways_or_zones_are_told(tmp_path):
    files = log(tmp_path, a=["2021-01-13 10:00", "2021-01-13 10:00:00Z", "13/1/2021", "1/1/2021"])
    assert events(files).report["reading_notes"] == [
        "times are written in 2 ways in a.csv: 2 as '2021-01-13 10:00', 2 as '13/1/2021'",
        "1 of 4 times in a.csv have a time zone; the others are read as UTC",
    ]


def test_skipping_bad_rows_never_drops_most_of_them(tmp_path):
    half = log(tmp_path, a=["2021-01-13"] * 3 + ["soon"] * 3)
    assert events(half, skip_bad_rows=True).report["bad_rows"] == 3
    words = (
        "b.csv, row 4: date is 'soon', which does not fit --time-format '%Y-%m-%d', as in 4 of 7 "
        "rows, too many to skip. Correct the format, or name another column with --time."
    )
    with raises_text(words, DataError):
        events(log(tmp_path, b=["2021-01-13"] * 3 + ["soon"] * 4), skip_bad_rows=True,
               time_format="%Y-%m-%d")  # fmt: skip
    empty = events(log(tmp_path, c=["2021-01-13"] + [""] * 4), skip_bad_rows=True)
    assert (empty.report["bad_rows"], empty.report["bad_kinds"]) == (4, {"time": 4})
    words = (
        "d.csv, row 1: 4 values where the header names 3, as in 2 of 3 rows, too many to skip. "
        "Check its format and --separator."
    )
    with raises_text(words, DataError):
        events(log(tmp_path, d=["1,2", "1,2", "3"]), skip_bad_rows=True)


# ---- against a slow double: every value by every format, the order by brute force

MARKS = ("/", "-", ".")
TAILS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p")


def slow(values):
    """Times of numeric and ISO dates, or "unclear"; orders that fit all dates, or fewest miss."""

    def parsed(value, order):
        for mark in MARKS:
            dates = [f"%Y{mark}%m{mark}%d", mark.join((*order, "%Y"))]
            for form in [date + tail for date in dates for tail in TAILS]:
                try:
                    return datetime.strptime(value, form)
                except ValueError:
                    pass
        return None

    day = [parsed(value, ("%d", "%m")) for value in values]
    month = [parsed(value, ("%m", "%d")) for value in values]
    if day == month:
        return day
    only_day = any(d is not None and m is None for d, m in zip(day, month, strict=True))
    only_month = any(m is not None and d is None for d, m in zip(day, month, strict=True))
    if only_day == only_month:
        return "unclear"
    return day if only_day else month


@st.composite
def columns(draw):
    """Dates of one or both orders, with ISO dates and other text among them."""
    orders = draw(st.sampled_from([["dm"], ["md"], ["dm", "md"], ["iso"], ["dm", "iso"]]))
    latest = draw(st.sampled_from([12, 28, 31]))
    values = []
    for _ in range(draw(st.integers(1, 17))):
        order = draw(st.sampled_from(orders))
        day, month = draw(st.integers(1, latest)), draw(st.integers(1, 12))
        year, mark = draw(st.sampled_from([1969, 2020, 2021])), draw(st.sampled_from(MARKS))
        wide = draw(st.booleans())
        parts = [f"{n:02}" if wide else str(n) for n in (day, month)]
        fields = {"dm": (*parts, str(year)), "md": (*parts[::-1], str(year)),
                  "iso": (str(year), f"{month:02}", f"{day:02}")}[order]  # fmt: skip
        tail = draw(st.sampled_from(["", " 09:05", " 23:59:58", " 11:30 PM"]))
        values.append(mark.join(fields) + ("" if order == "iso" else tail))
    other = draw(st.lists(st.sampled_from(["x", "", "13/13/2021", "soon 1/2"]), max_size=2))
    return draw(st.permutations(values + other))


@given(columns())
def test_parsing_agrees_with_a_slow_double(values):
    want = slow(values)
    column = pl.Series("t", values, dtype=pl.String)
    if want == "unclear":
        with pytest.raises(UnclearDatesError):
            parse_times(column, FILE)
        return
    got = parse_times(column, FILE).values
    expected = [None if t is None else (t - EPOCH) // timedelta(microseconds=1) for t in want]
    assert got.to_list() == expected
    num_times = sum(time is not None for time in want)
    assert looks_like_times(column) == (num_times >= 0.95 * len(values))
