"""Keys map to ids and back; errors for unknown keys suggest a similar one."""

import numpy as np
import polars as pl
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st

from tapas import DataError
from tapas.data import Vocabulary


def build(keys, kind="item", dtype=None) -> Vocabulary:
    return Vocabulary(pl.Series(keys, dtype=dtype), np.arange(len(keys))[::-1].copy(), kind=kind)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1))
def test_integer_keys_map_to_ids_and_back(keys):
    vocabulary = build(keys, dtype=pl.Int64)
    assert vocabulary.keys(np.arange(len(keys))) == keys
    assert vocabulary.ids(keys).tolist() == list(range(len(keys)))
    assert vocabulary.ids(map(str, keys)).tolist() == list(range(len(keys)))


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), unique=True, min_size=1))
def test_text_keys_map_to_ids_and_back(keys):
    vocabulary = build(keys, dtype=pl.String)
    assert vocabulary.keys(list(range(len(keys)))) == keys
    assert vocabulary.ids(keys).tolist() == list(range(len(keys)))


def test_keys_may_exceed_int64():
    vocabulary = build([2**64 - 1, 5], dtype=pl.UInt64)
    assert vocabulary.id(2**64 - 1) == 0
    assert vocabulary.key(1) == 5


def test_keys_that_no_key_can_equal_are_unknown():
    for dtype in (pl.Int64, pl.UInt8, pl.String):
        vocabulary = build([7, 200], dtype=pl.Int64)
        vocabulary = Vocabulary(vocabulary.gather(np.arange(2)).cast(dtype), np.ones(2, np.int64))
        assert vocabulary.known_ids([200, 7, 300, -1, 2**70]).tolist() == [1, 0, -1, -1, -1]
        assert vocabulary.known_ids(["200", 7, "x", ""]).tolist() == [1, 0, -1, -1]
        assert vocabulary.known_ids([]).tolist() == []
        found = vocabulary.lookup(pl.Series([7, None, 201], dtype=pl.Int64))
        assert found.tolist() == [0, -1, -1]
    empty = build([], dtype=pl.Int64)
    assert empty.known_ids([1, 2]).tolist() == [-1, -1]


def test_unknown_keys_and_ids_are_refused():
    with raises_text("unknown item '109527'. Did you mean '1095275'? The model knows 3 items."):
        build([1095275, 42, 7]).id("109527")
    with raises_text("unknown user 'zzz'. The model knows 2 users."):
        build(["anna", "otto"], kind="user").ids(["anna", "zzz"])
    for key in ("x", "", 7.5, 2**70):
        with raises_text("unknown item"):
            build([7, 8]).id(key)
    for bad in (-1, 2):
        with raises_text(f"item id {bad} is outside 0 .. 1."):
            build([5, 6]).keys([0, bad])


def test_the_rare_class_has_a_name_and_an_id():
    vocabulary = build([5, None, 6])
    assert vocabulary.keys([0, 1, 2]) == [5, "(rare)", 6]
    assert vocabulary.id("(rare)") == vocabulary.rare_id == 1
    assert vocabulary.ids([6, "(rare)", "5"]).tolist() == [2, 1, 0]
    assert build(["a"]).rare_id is None


def test_a_saved_vocabulary_is_loaded_unchanged_and_a_damaged_file_is_named(tmp_path):
    file = tmp_path / "v.parquet"
    build(["b", None, "a"]).save(file)
    loaded = Vocabulary.load(file)
    assert loaded.keys([0, 1, 2]) == ["b", "(rare)", "a"]
    assert loaded.counts.tolist() == [2, 1, 0]
    file.write_bytes(b"PAR1")
    with raises_text(f"{file} cannot be read: ", DataError):
        Vocabulary.load(file)


def test_a_small_file_with_a_huge_number_of_equal_keys_is_not_read(tmp_path):
    file = tmp_path / "keys.parquet"
    many = pl.DataFrame({"key": pl.repeat(1, 5_000_000, eager=True, dtype=pl.Int64)})
    many.with_columns(count=pl.col("key")).write_parquet(file)
    assert file.stat().st_size < 50_000
    with raises_text("keys.parquet claims 5,000,000 keys in ", DataError):
        Vocabulary.load(file)
    pl.DataFrame({"key": [[1]], "count": [1]}).write_parquet(file)
    with raises_text(
        "keys.parquet cannot be read: key is of type List(Int64). Expected ", DataError
    ):
        Vocabulary.load(file)
