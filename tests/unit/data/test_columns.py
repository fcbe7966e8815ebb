"""Columns are found by name, guessed by common names, or missed in words."""

import re
from pathlib import Path

import pytest

from tapas import UsageError
from tapas.data import LogSource
from tapas.data.columns import resolve_columns

FILE = Path("clicks.csv")


def resolve(present, **options):
    return resolve_columns(LogSource(files=("clicks.csv",), **options), present, FILE)


@pytest.mark.parametrize(
    "present",
    [
        ["user_id", "item_id", "timestamp"],
        ["household_id", "product_id", "transaction_timestamp"],
        ["visitorid", "itemid", "event_time"],
        ["userId", "movieId", "date"],
        ["SESSION ID", "SKU", "created_at"],
    ],
)
def test_common_names_are_guessed(present):
    columns, guessed = resolve(["rating", *reversed(present), "price"])
    assert list(columns.values()) == present
    assert guessed == ["user", "item", "time"]


def test_a_user_is_preferred_to_a_session_and_what_was_told_is_not_guessed():
    columns, guessed = resolve(["session_id", "user_id", "sku", "item_id"], item="sku")
    assert columns == {"user": "user_id", "item": "sku"}
    assert guessed == ["user"]


def test_a_column_told_for_one_part_is_not_guessed_for_another():
    columns, _ = resolve(["user_id", "session_id", "item_id"], item="user_id")
    assert columns == {"user": "session_id", "item": "user_id"}


def test_a_misspelt_column_is_told_its_name():
    words = (
        "clicks.csv has no column 'usr' for the user. Did you mean 'user'? Columns: user, item, at."
    )
    with pytest.raises(UsageError, match=re.escape(words)):
        resolve(["user", "item", "at"], user="usr")


def test_a_column_that_cannot_be_guessed_is_asked_for():
    words = "clicks.csv: no column looks like the item. Name it with --item. Columns: user, x."
    with pytest.raises(UsageError, match=re.escape(words)):
        resolve(["user", "x"])


def test_one_column_cannot_be_two_things():
    words = "clicks.csv: one column has two parts to play: user is 'id', item is 'id'."
    with pytest.raises(UsageError, match=re.escape(words)):
        resolve(["id"], user="id", item="id")
