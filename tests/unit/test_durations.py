"""Durations as people write and read them."""

import pytest

from tapas.durations import duration, parse_duration
from tapas.errors import UsageError


@pytest.mark.parametrize(
    ("words", "seconds"),
    [("10m", 600), ("90s", 90), ("1h", 3600), ("600", 600), (" 1.5 h ", 5400), (".5m", 30)],
)
def test_durations(words, seconds):
    assert parse_duration(words) == seconds


@pytest.mark.parametrize("words", ["", "0", "0m", "-3s", "10 minutes", "1d", "nan", "1e3", "m"])
def test_a_time_that_cannot_be_read_is_an_error_with_examples(words):
    with pytest.raises(UsageError) as caught:
        parse_duration(words)
    assert str(caught.value) == (
        f"cannot read '{words}' as a time above 0. Write 90s, 10m, 1h, or a number of seconds."
    )


def test_durations_in_words():
    times = {0.5: "0.5 s", 119: "119 s", 150: "2.5 min", 3_600: "60 min", 7_200: "2.0 h"}
    assert {seconds: duration(seconds) for seconds in times} == times
