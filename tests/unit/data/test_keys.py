"""Keys become codes in the order of the keys, whatever they were written as."""

import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapas import DataError
from tapas.data import keys as keys_module
from tapas.data.keys import code_integers, code_keys, plain_keys

FILE = Path("clicks.parquet")
INT64 = st.integers(-(2**63), 2**63 - 1)


def by_loop(values):
    keys = sorted(set(values))
    return [keys.index(v) for v in values], keys


@given(st.lists(INT64 | st.integers(-3, 3), min_size=1))
def test_integers_are_coded_like_a_loop_does(values):
    coded = code_integers(np.array(values))
    assert (coded.codes.tolist(), coded.keys.to_list()) == by_loop(values)


@given(st.lists(INT64 | st.integers(-3, 3), min_size=1))
def test_keys_that_collide_are_still_told_apart(values):
    before, keys_module.MOST_TABLE_BITS = keys_module.MOST_TABLE_BITS, 1
    try:
        coded = code_integers(np.array(values))
    finally:
        keys_module.MOST_TABLE_BITS = before
    assert (coded.codes.tolist(), coded.keys.to_list()) == by_loop(values)


@given(st.lists(st.sampled_from(["a", "b", "ä", "7", "07", "x y"]), min_size=1))
def test_text_is_coded_like_a_loop_does(values):
    coded = code_keys([pl.Series("k", values)], typed=True)
    codes, keys = by_loop(values)
    assert (coded.codes.tolist(), coded.keys.to_list()) == (codes, keys)


@pytest.mark.parametrize(
    ("texts", "keys"),
    [
        (["10", "9", "-3"], [-3, 9, 10]),
        (["10", "9.0", "9"], [9, 10]),
        (["10", "09"], ["09", "10"]),
        (["10", "x"], ["10", "x"]),
        (["18446744073709551615", "3"], [3, 2**64 - 1]),
        (["123456789012345678901234", "3"], ["123456789012345678901234", "3"]),
    ],
)
def test_text_that_is_all_whole_numbers_becomes_numbers(texts, keys):
    coded = code_keys([pl.Series("k", texts)], typed=False)
    assert coded.keys.to_list() == keys
    assert len(set(coded.codes.tolist())) == len(keys)


def test_files_of_different_types_meet_as_text():
    coded = code_keys([pl.Series("k", [10, 9]), pl.Series("k", ["9", "x"])], typed=True)
    assert coded.keys.to_list() == ["10", "9", "x"]
    assert coded.codes.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("column", "want"),
    [
        (pl.Series([1, None], dtype=pl.UInt8), [1, None]),
        (pl.Series([1.0, float("nan"), None]), [1, None, None]),
        (pl.Series([2**64 - 1], dtype=pl.UInt64), [2**64 - 1]),
        (pl.Series([3], dtype=pl.UInt64), [3]),
        (pl.Series(["a", "", None]), ["a", None, None]),
        (pl.Series(["a", "b"], dtype=pl.Categorical), ["a", "b"]),
        (pl.Series([Decimal("5.00"), Decimal("7.00")]), [5, 7]),
        (pl.Series([2**100], dtype=pl.Int128), [str(2**100)]),
    ],
)
def test_every_type_of_key_is_welcome(column, want):
    assert plain_keys(column, FILE).to_list() == want


@pytest.mark.parametrize("bad", [2.5, 2.0**60, float("inf")])
def test_a_float_that_is_no_whole_number_is_an_error(bad):
    words = f"clicks.parquet, row 3: item is {bad}, a number with a fraction or beyond 2^53."
    with pytest.raises(DataError, match=re.escape(words)):
        plain_keys(pl.Series("item", [1.0, None, bad]), FILE)


def test_a_decimal_with_a_fraction_is_an_error():
    with pytest.raises(DataError, match=re.escape("clicks.parquet, row 1: item is 1.50, a nu")):
        plain_keys(pl.Series("item", [Decimal("1.50")]), FILE)


def test_lists_are_no_keys():
    words = "clicks.parquet: column 'item' has type List(Int64); expected whole numbers or text."
    with pytest.raises(DataError, match=re.escape(words)):
        plain_keys(pl.Series("item", [[1]]), FILE)
