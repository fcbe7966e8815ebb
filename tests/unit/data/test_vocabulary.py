"""Keys and ids go both ways; an unknown key is told what it might have been."""

import re

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapas import DataError, UsageError
from tapas.data import Vocabulary


def build(keys, kind="item", dtype=None) -> Vocabulary:
    return Vocabulary(pl.Series(keys, dtype=dtype), np.arange(len(keys))[::-1].copy(), kind=kind)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1))
def test_integer_keys_go_both_ways(keys):
    vocabulary = build(keys, dtype=pl.Int64)
    assert vocabulary.keys(np.arange(len(keys))) == keys
    assert vocabulary.ids(keys).tolist() == list(range(len(keys)))
    assert vocabulary.ids(map(str, keys)).tolist() == list(range(len(keys)))


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), unique=True, min_size=1))
def test_text_keys_go_both_ways(keys):
    vocabulary = build(keys, dtype=pl.String)
    assert vocabulary.keys(list(range(len(keys)))) == keys
    assert vocabulary.ids(keys).tolist() == list(range(len(keys)))


def test_keys_beyond_int64_are_known():
    vocabulary = build([2**64 - 1, 5], dtype=pl.UInt64)
    assert vocabulary.id(2**64 - 1) == 0
    assert vocabulary.key(1) == 5


def test_an_unknown_key_is_told_a_close_one():
    vocabulary = build([1095275, 42, 7])
    with pytest.raises(UsageError) as caught:
        vocabulary.id("109527")
    assert str(caught.value) == (
        "unknown item '109527'. Did you mean '1095275'? The model knows 3 items."
    )
    with pytest.raises(UsageError) as caught:
        build(["anna", "otto"], kind="user").ids(["anna", "zzz"])
    assert str(caught.value) == "unknown user 'zzz'. The model knows 2 users."


def test_what_is_no_number_is_unknown_among_numbers():
    for key in ("x", "", 7.5, 2**70):
        with pytest.raises(UsageError, match="unknown item"):
            build([7, 8]).id(key)


def test_the_rare_class_prints_as_such():
    vocabulary = build([5, None, 6])
    assert vocabulary.keys([0, 1, 2]) == [5, "(rare)", 6]
    assert vocabulary.id("(rare)") == 1
    assert vocabulary.ids([6, "(rare)", "5"]).tolist() == [2, 1, 0]


def test_an_id_out_of_range_is_told():
    for bad in (-1, 2):
        with pytest.raises(UsageError, match=re.escape(f"item id {bad} is outside 0 .. 1.")):
            build([5, 6]).keys([0, bad])


def test_saved_and_loaded_it_is_the_same(tmp_path):
    vocabulary = build(["b", None, "a"])
    vocabulary.save(tmp_path / "v.parquet")
    loaded = Vocabulary.load(tmp_path / "v.parquet")
    assert loaded.keys([0, 1, 2]) == ["b", "(rare)", "a"]
    assert loaded.counts.tolist() == [2, 1, 0]
    assert len(loaded) == 3
    assert repr(loaded) == "Vocabulary(3 items)"


def test_a_broken_file_is_named(tmp_path):
    file = tmp_path / "v.parquet"
    file.write_bytes(b"PAR1")
    with pytest.raises(DataError, match=re.escape(f"{file} cannot be read: ")):
        Vocabulary.load(file)


def test_the_class_of_rare_items_is_known_by_its_id():
    with_rare = Vocabulary(pl.Series([5, None, 6]), np.array([3, 2, 1]))
    assert with_rare.rare_id == 1
    assert Vocabulary(pl.Series(["a"]), np.array([1])).rare_id is None
