"""Keys of all types are encoded in the order of the keys."""

from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st

from tapas import DataError
from tapas.data import keys as keys_module
from tapas.data.keys import MAX_TABLE_BITS, code_integers, code_keys, normalize_keys

FILE = Path("clicks.parquet")
INT64 = st.integers(-(2**63), 2**63 - 1)


def by_loop(values):
    keys = sorted(set(values))
    return [keys.index(v) for v in values], keys


@given(st.lists(INT64 | st.integers(-3, 3), min_size=1), st.sampled_from([1, MAX_TABLE_BITS]))
def test_integers_are_encoded_like_a_loop_despite_hash_collisions(values, bits):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys_module, "MAX_TABLE_BITS", bits)
        coded = code_integers(np.array(values))
    assert (coded.codes.tolist(), coded.keys.to_list()) == by_loop(values)


@given(st.lists(st.sampled_from(["a", "b", "ä", "7", "07", "x y"]), min_size=1))
def test_text_is_encoded_like_a_loop(values):
    coded = code_keys([pl.Series("k", values)], typed=True)
    assert (coded.codes.tolist(), coded.keys.to_list()) == by_loop(values)


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
def test_text_that_is_all_integers_becomes_integers(texts, keys):
    coded = code_keys([pl.Series("k", texts)], typed=False)
    assert coded.keys.to_list() == keys
    assert len(set(coded.codes.tolist())) == len(keys)


def test_keys_of_different_types_become_text():
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
def test_all_types_of_keys_are_accepted(column, want):
    assert normalize_keys(column, FILE).to_list() == want


def test_columns_that_cannot_be_keys_are_refused():
    for bad in (2.5, 2.0**60, float("inf")):
        words = f"clicks.parquet, row 3: item is {bad}, a number with a fraction or beyond 2^53"
        with raises_text(words, DataError):
            normalize_keys(pl.Series("item", [1.0, None, bad]), FILE)
    with raises_text("clicks.parquet, row 1: item is 1.50, a nu", DataError):
        normalize_keys(pl.Series("item", [Decimal("1.50")]), FILE)
    words = "clicks.parquet: column 'item' has type List(Int64); expected integers or text"
    with raises_text(words, DataError):
        normalize_keys(pl.Series("item", [[1]]), FILE)
