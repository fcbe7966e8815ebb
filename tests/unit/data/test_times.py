"""Dates, numbers and text are parsed to int64 times."""

from datetime import UTC, date, datetime
from pathlib import Path

import polars as pl
import pytest
from error_text import raises_text

from tapas import DataError
from tapas.data.times import parse_times

FILE = Path("clicks.csv")
DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("values", "want", "kind"),
    [
        ([5, None], [5, None], "number"),
        ([5.0, float("nan"), float("inf")], [5, None, None], "number"),
        ([1.25, 2.0], [1_250_000, 2_000_000], "datetime"),
        ([date(1970, 1, 2), None], [DAY, None], "datetime"),
        ([datetime(1970, 1, 2, 0, 0, 0, 7)], [DAY + 7], "datetime"),
        ([datetime(1970, 1, 2, tzinfo=UTC)], [DAY], "datetime"),
        (["5", "-7"], [5, -7], "number"),
        (["5", "x", None], [5, None, None], "number"),
        (["5.0", "7"], [5, 7], "number"),
        (["1.5", "7"], [1_500_000, 7_000_000], "datetime"),
        (["1970-01-02", "x"], [DAY, None], "datetime"),
        (["1970-01-02 00:00:01", None], [DAY + 1_000_000, None], "datetime"),
        (["1970-01-02T00:00:00Z"], [DAY], "datetime"),
        (["1970-01-02 01:00:00+01:00"], [DAY], "datetime"),
        (["1970-01-02 00:00:00 UTC"], [DAY], "datetime"),
        (["1,500", "2,50"], [1_500_000, 2_500_000], "datetime"),
        (["0,500", "x"], [500_000, None], "datetime"),
        (["1,500", " 1,000,000 ", "7"], [1_500, 1_000_000, 7], "number"),
        (["1970-01-02", "1970-01-02", "1,500"], [DAY, DAY, None], "datetime"),
        (["x", "y"], [None, None], "number"),
        ([None], [None], "number"),
    ],
)
def test_times_become_integers(values, want, kind):
    found = parse_times(pl.Series("t", values), FILE)
    assert found.values.dtype == pl.Int64
    assert (found.values.to_list(), found.kind) == (want, kind)


@pytest.mark.parametrize("time_format", [None, "s"])
def test_commas_that_may_be_decimal_points_or_separate_thousands_are_refused(time_format):
    words = (
        "clicks.csv: t is '1,500' in row 2, and no row shows whether commas are decimal points or "
        "separate thousands. Write such numbers as 1.500 or 1500."
    )
    with raises_text(words, DataError):
        parse_times(pl.Series("t", ["900", " 1,500"]), FILE, time_format)
    words = (
        "clicks.csv: t has commas for decimal points ('1,5' in row 2) and between thousands "
        "('1,000,000' in row 1). Write numbers the same way in all rows."
    )
    with raises_text(words, DataError):
        parse_times(pl.Series("t", ["1,000,000", "1,5"]), FILE, time_format)


def test_a_column_that_cannot_be_a_time_is_refused():
    words = (
        "clicks.csv: column 't' has type Boolean; expected a date, a datetime, a number or text "
        "for the time."
    )
    with raises_text(words, DataError):
        parse_times(pl.Series("t", [True]), FILE)
