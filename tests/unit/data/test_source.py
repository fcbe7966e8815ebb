"""Sources are validated, find their columns, and have a key that covers all that matters."""

import dataclasses
import os
from pathlib import Path

import polars as pl
import pytest
from error_text import raises_text

from tapas.data import LogSource
from tapas.data.columns import Present, resolve_columns

BAD = [
    ({"rare": "fol", "min_count": 2}, "rare must be one of keep, drop, fold, got 'fol'."),
    ({"split": "letters"}, "split must be one of words, spaces, got 'letters'."),
    ({"files": "a.csv"}, "files must be a tuple of at least one path or glob, got 'a.csv'."),
    ({"files": ()}, "files must be a tuple of at least one path or glob, got ()."),
    ({"min_count": 0}, "min_count must be at least 1, got 0."),
    ({"rare": "drop"}, "rare is 'drop', but with min_count 1 no item is rare. Raise min_count."),
    (
        {"text": "body", "user": "who"},
        "user is 'who', but with text='body' the documents are the users",
    ),
    ({"where": "a=1"}, "where must be a tuple of conditions, got 'a=1'."),
    (
        {"where": ("purchase",)},
        "--where 'purchase' is not COLUMN=VALUE, as in event_type=purchase. Beside = there are "
        "!=, >=, <=, > and <.",
    ),
    (
        {"where": ("a=b\nc",)},
        "--where 'a=b\\nc' has a line break in a value. Put the value in double quotes.",
    ),
    ({"where": ("price>",)}, "--where 'price>' has no value to compare price with."),
    (
        {"time_format": "day"},
        "time_format must be a format such as '%d.%m.%Y %H:%M', or s, ms, us or ns for numbers "
        "since 1970, got 'day'.",
    ),
    ({"time_format": "%d.%m. %H:%M"}, "time_format '%d.%m. %H:%M' has no year: add %Y (2024) or"),
    ({"time_format": "%Y-%Q"}, "time_format '%Y-%Q' has '%Q', which is not known. Use %Y %m %d"),
    ({"separator": ""}, "separator must be one or more characters other than quotes and line"),
    ({"group": "book"}, "group is 'book', but only text has groups. Name the column of the text."),
]


@pytest.mark.parametrize(("options", "words"), BAD)
def test_bad_options_are_refused(options, words):
    with raises_text(words):
        LogSource(**{"files": ("a.csv",)} | options)


def test_globs_are_expanded_sorted_and_without_duplicates(tmp_path):
    """An existing file with brackets in its name is no pattern."""
    for name in ("b.csv", "a[1].csv", "d.csv", "c.txt"):
        (tmp_path / name).write_text("x")
    files = (str(tmp_path / "*.csv"), str(tmp_path / "b.csv"))
    assert [p.name for p in LogSource(files=files).paths()] == ["a[1].csv", "b.csv", "d.csv"]
    assert [p.name for p in LogSource(files=(str(tmp_path / "a[1].csv"),)).paths()] == ["a[1].csv"]
    with raises_text(
        f"'{tmp_path}' is a folder. Name the files in it, for example '{tmp_path}/*.parq"
    ):
        LogSource(files=(str(tmp_path),)).paths()


def test_the_cache_key_changes_with_options_contents_and_modification_times(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("user,item\n1,2\n")
    os.utime(file, ns=(5, 5))
    files = (str(file),)
    keys = [LogSource(files=files).cache_key(1)]
    assert LogSource(files=files).cache_key(1) == keys[0]
    keys.append(LogSource(files=files).cache_key(2))
    keys.append(LogSource(files=files, min_count=2).cache_key(1))
    file.write_text("user,item\n1,3\n")
    os.utime(file, ns=(5, 5))
    keys.append(LogSource(files=files).cache_key(1))
    os.utime(file, ns=(5, 6))
    keys.append(LogSource(files=files).cache_key(1))
    keys.append(LogSource(files=files, weight="rating").cache_key(1))
    assert len(set(keys)) == len(keys)


def test_fields_added_later_are_no_part_of_the_cache_key_at_their_defaults(tmp_path, monkeypatch):
    """Otherwise every log would be prepared again after an update."""
    file = tmp_path / "a.csv"
    file.write_text("user,item\n1,2\n")
    os.utime(file, ns=(5, 5))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "resolve", lambda path: path)
    key = LogSource(files=("a.csv",)).cache_key(1)
    assert key == "81ee40f535eb9a12d406c43f652f8c56"
    source = LogSource(files=("a.csv",))
    for change in ({"where": ("a=1",)}, {"time_format": "s"}, {"separator": ";"},
                   {"no_header": True}, {"weight": "w"}):  # fmt: skip
        assert dataclasses.replace(source, **change).cache_key(1) != key


def resolve(present, **options):
    sample = pl.DataFrame([[str(name)] for name in present], schema=present)
    return resolve_columns(
        LogSource(files=("a.csv",), **options), Present(Path("clicks.csv"), sample)
    )


GUESSED = [  # columns of the file, columns that are named, resulting user, item and time
    (["user_id", "item_id", "timestamp"], {}, ["user_id", "item_id", "timestamp"]),
    (["x", "transaction_timestamp", "product_id", "household_id"], {},
     ["household_id", "product_id", "transaction_timestamp"]),
    (["date", "movieId", "userId"], {}, ["userId", "movieId", "date"]),
    (["SKU", "created_at", "SESSION ID"], {}, ["SESSION ID", "SKU", "created_at"]),
    (["session_id", "user_id", "sku", "item_id"], {"item": "sku"}, ["user_id", "sku"]),
    (["user_id", "session_id", "item_id"], {"item": "user_id"}, ["session_id", "user_id"]),
    (["Artikelnummer", "KundenNr", "Kategorie"], {}, ["KundenNr", "Artikelnummer"]),
    (["shop_customer_id", "product_category", "product_code"], {},
     ["shop_customer_id", "product_code"]),
    (["Käufer-ID", "movie_title", "movie_genre"], {}, ["Käufer-ID", "movie_title"]),
    (["id_usuario", "cod_producto"], {"item": "cod_producto"}, ["id_usuario", "cod_producto"]),
]  # fmt: skip


@pytest.mark.parametrize(("present", "given", "columns"), GUESSED)
def test_columns_that_are_not_named_are_guessed(present, given, columns):
    found = resolve([*present, "price"], **given)
    assert list(found.names.values()) == columns
    assert found.guessed == [role for role in found.names if role not in given]


def test_a_column_used_twice_is_refused():
    with raises_text("clicks.csv: one column is used twice: user is 'id', item is 'id'. Name"):
        resolve(["id"], user="id", item="id")
