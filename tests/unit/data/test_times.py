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
        (["x", "y"], [None, None], "number"),
        ([None], [None], "number"),
    ],
)
def test_times_become_integers(values, want, kind):
    found = parse_times(pl.Series("t", values), FILE)
    assert found.values.dtype == pl.Int64
    assert (found.values.to_list(), found.kind) == (want, kind)


def test_a_column_that_cannot_be_a_time_is_refused():
    words = (
        "clicks.csv: column 't' has type Boolean; expected a date, a datetime, a number or text "
        "for the time."
    )
    with raises_text(words, DataError):
        parse_times(pl.Series("t", [True]), FILE)
