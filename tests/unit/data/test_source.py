"""A source is checked when it is made, finds its columns, and has a key for what matters."""

import os
from pathlib import Path

import pytest
from words import told

from tapas.data import LogSource
from tapas.data.columns import resolve_columns


def test_wrong_words_are_told():
    with told("rare must be one of keep, drop, fold, got 'fol'."):
        LogSource(files=("a.csv",), rare="fol", min_count=2)
    with told("split must be one of words, spaces, got 'letters'."):
        LogSource(files=("a.csv",), split="letters")
    with told("files must be a tuple of at least one path or glob, got 'a.csv'."):
        LogSource(files="a.csv")
    with told("files must be a tuple of at least one path or glob, got ()."):
        LogSource(files=())
    with told("min_count must be at least 1, got 0."):
        LogSource(files=("a.csv",), min_count=0)
    with told("rare is 'drop', but with min_count 1 no item is rare. Raise min_count."):
        LogSource(files=("a.csv",), rare="drop")
    with told("user is 'who', but with text='body' the documents are the users"):
        LogSource(files=("a.csv",), text="body", user="who")
    with told("group is 'book', but groups belong to a text. Name its column as text."):
        LogSource(files=("a.csv",), group="book")


def test_globs_are_expanded_sorted_and_named_once(tmp_path):
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).write_text("x")
    source = LogSource(files=(str(tmp_path / "*.csv"), str(tmp_path / "b.csv")))
    assert [p.name for p in source.paths()] == ["a.csv", "b.csv"]


def test_a_name_with_brackets_is_a_file_before_it_is_a_pattern(tmp_path):
    (tmp_path / "a[1].csv").write_text("x")
    assert [p.name for p in LogSource(files=(str(tmp_path / "a[1].csv"),)).paths()] == ["a[1].csv"]


def test_what_matches_nothing_is_named(tmp_path):
    with told(f"no file matches '{tmp_path}/*.csv'. Check the path."):
        LogSource(files=(f"{tmp_path}/*.csv",)).paths()
    with told(f"'{tmp_path}' is a folder. Name the files in it, for example '{tmp_path}/*.parq"):
        LogSource(files=(str(tmp_path),)).paths()


def test_the_key_changes_with_options_contents_and_times(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("user,item\n1,2\n")
    os.utime(file, ns=(5, 5))
    files = (str(file),)
    keys = [LogSource(files=files).content_key(1)]
    assert LogSource(files=files).content_key(1) == keys[0]
    keys.append(LogSource(files=files).content_key(2))
    keys.append(LogSource(files=files, min_count=2).content_key(1))
    file.write_text("user,item\n1,3\n")
    os.utime(file, ns=(5, 5))
    keys.append(LogSource(files=files).content_key(1))
    os.utime(file, ns=(5, 6))
    keys.append(LogSource(files=files).content_key(1))
    assert len(set(keys)) == len(keys)


def resolve(present, **options):
    return resolve_columns(LogSource(files=("a.csv",), **options), present, Path("clicks.csv"))


@pytest.mark.parametrize(
    "present",
    [
        ["user_id", "item_id", "timestamp"],
        ["household_id", "product_id", "transaction_timestamp"],
        ["userId", "movieId", "date"],
        ["SESSION ID", "SKU", "created_at"],
    ],
)
def test_common_names_of_columns_are_guessed(present):
    columns, guessed = resolve(["rating", *reversed(present), "price"])
    assert list(columns.values()) == present
    assert guessed == ["user", "item", "time"]


def test_a_user_is_preferred_to_a_session_and_what_was_told_is_not_guessed():
    columns, guessed = resolve(["session_id", "user_id", "sku", "item_id"], item="sku")
    assert (columns, guessed) == ({"user": "user_id", "item": "sku"}, ["user"])
    columns, _ = resolve(["user_id", "session_id", "item_id"], item="user_id")
    assert columns == {"user": "session_id", "item": "user_id"}


def test_columns_that_are_not_there_or_not_clear_are_told():
    with told(
        "clicks.csv has no column 'usr' for the user. Did you mean 'user'? Columns: user, item, at."
    ):
        resolve(["user", "item", "at"], user="usr")
    with told("clicks.csv: no column looks like the item. Name it with --item. Columns: user, x."):
        resolve(["user", "x"])
    with told("clicks.csv: one column has two parts to play: user is 'id', item is 'id'."):
        resolve(["id"], user="id", item="id")
