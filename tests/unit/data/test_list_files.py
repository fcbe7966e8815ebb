"""Lists from a file: read in any form, and each oddity counted."""

import math

import numpy as np
import polars as pl
import pytest
from error_text import raises_text
from oracle.command_line import chain_log

from tapas.data.list_files import read_lists
from tapas.data.splits import SplitConfig, split_log
from tapas.errors import DataError, UsageError


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return chain_log(tmp_path_factory.mktemp("log"), num_users=11, num_items=37, num_baskets=9)


@pytest.fixture(scope="module")
def points(log):
    return split_log(log, SplitConfig(kind="last")).test[:7]


@pytest.fixture
def lists(log, points):
    """A list of 23 different items for each user, as (user, item) rows, best first."""
    draw = np.random.default_rng(0)
    return [
        (user, item)
        for user in log.user_keys.keys(points.user)
        for item in log.item_keys.keys(draw.permutation(log.num_items)[:23])
    ]


def frame_of(rows, **more):
    columns = {"user": [u for u, _ in rows], "item": [i for _, i in rows], **more}
    return pl.DataFrame(columns)


def expected(rows, log, points, length=20):
    found = np.full((len(points), 20), -1)
    for place, user in enumerate(log.user_keys.keys(points.user)):
        mine = [item for u, item in rows if u == user][:length]
        found[place, : len(mine)] = log.item_keys.ids(mine)
    return found.tolist()


RANKS = list(range(1, 24)) * 7


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
@pytest.mark.parametrize("order", [None, "rank", "score"])
def test_all_formats_and_orders_give_the_same_lists(tmp_path, log, points, lists, suffix, order):
    gaps = [3 * rank + 4 for rank in RANKS]
    values = {None: {}, "rank": {"Rank": gaps}, "score": {"score": [-r / 2 for r in RANKS]}}[order]
    frame = frame_of(lists, **values).rename({"item": "item_id"})
    if order is not None:
        frame = frame.sample(fraction=1, shuffle=True, seed=3)
    path = tmp_path / f"lists{suffix}"
    write = {".csv": frame.write_csv, ".parquet": frame.write_parquet, ".jsonl": frame.write_ndjson}
    write[suffix](path)
    found, counts = read_lists(path, log, points, length=20)
    assert found.tolist() == expected(lists, log, points)
    named = {"rank": {"rank": "Rank"}, "score": {"score": "score"}, None: {}}[order]
    assert counts.columns == {"user": "user", "item": "item_id", **named}
    in_order = ", rows in order" if order is None else f", {named[order]}"
    in_order += " (rank)" if order == "rank" else ""
    assert str(counts) == (
        f"{path}, columns user, item_id (item){in_order}: all 7 users have a list."
    )


def test_the_file_of_recommend_is_taken_as_it_is(tmp_path, log, points, lists):
    """Ranks win over scores, whatever else there is."""
    frame = frame_of(lists, rank=RANKS, score=RANKS, probability=RANKS)
    frame.write_parquet(tmp_path / "lists.parquet")
    found, counts = read_lists(tmp_path / "lists.parquet", log, points, length=20)
    assert found.tolist() == expected(lists, log, points)
    assert counts.columns == {"user": "user", "item": "item", "rank": "rank"}


def test_every_oddity_is_counted_and_said(tmp_path, log, points, lists):
    users = log.user_keys.keys(points.user)
    kept = [(user, item) for user, item in lists if user not in users[:2]]
    short = [row for row in kept if row[0] == users[2]][:4]
    rows = short + [row for row in kept if row[0] != users[2]]
    ranks = [1, 2, 2, 3, *(list(range(1, 24)) * 4)]
    odd = [(users[3], rows[4][1]), (users[3], -5), ("nobody", 1000), (users[3], None), (None, 1000)]
    odd += [(users[4], 1000), (users[4], 1001)]
    frame = frame_of(
        rows + odd, rank=[*map(float, ranks), 99.0, 98.0, 1.0, 97.0, 1.0, None, math.nan]
    )
    frame.with_columns(pl.col("item").cast(pl.String) + ".0").write_csv(tmp_path / "odd.csv")
    found, counts = read_lists(tmp_path / "odd.csv", log, points, length=20)
    assert found.tolist() == expected(rows, log, points)
    assert str(counts).partition(": ")[2] == (
        "5 of 7 users have a list, the others score 0; 1 list has fewer than 20 items; 1 unknown "
        "item ignored; 1 repeated item ignored; 1 user has one rank twice (the earlier row goes "
        "first); 1 unknown user ignored; 4 incomplete rows ignored."
    )


def test_seen_items_are_left_out_like_those_of_the_model(tmp_path, log, points, lists):
    frame_of(lists).write_csv(tmp_path / "lists.csv")
    found, counts = read_lists(tmp_path / "lists.csv", log, points, length=20, exclude_seen=True)
    left, num_seen = [], 0
    users = log.user_keys.keys(points.user)
    for user, item in lists:
        place = users.index(user)
        start = log.offsets[points.user[place]]
        seen = log.item_keys.id(item) in log.items[start : points.point[place]]
        num_seen += seen
        left += [] if seen else [(user, item)]
    assert found.tolist() == expected(left, log, points)
    assert counts.seen_items == num_seen > 0
    assert f"{num_seen} items left out that the user had before" in str(counts)


def test_what_cannot_be_judged_is_an_error_with_a_cure(tmp_path, log, points, lists):
    path = tmp_path / "lists.csv"

    def refused(kind, words, frame):
        frame.write_csv(path)
        with raises_text(words, kind):
            read_lists(path, log, points, length=20)

    refused(
        UsageError,
        f"{path}: no column looks like the item. Rename it to 'item'. Columns: user, thing.",
        frame_of(lists).rename({"item": "thing"}),
    )
    first = ", ".join(f"'{user}'" for user in log.user_keys.keys(points.user[:3]))
    refused(
        DataError,
        f"{path} has no list for any of the 7 users that are judged. Its column 'user' has 'x'; "
        f"the users are {first}. `--points FILE` writes the users and what is known of them.",
        frame_of([("x", 1000)]),
    )
    items = ", ".join(f"'{item}'" for item in log.item_keys.keys([0, 1, 2]))
    refused(
        DataError,
        f"{path}: no item of these lists is in the log. Its column 'item' has 'a', 'b'; items of "
        f"the log are {items}.",
        frame_of([(lists[0][0], "a"), (lists[0][0], "b")]),
    )
    refused(
        DataError,
        f"{path}: no row has a number in column 'score', which is taken as the score. Write "
        "numbers there, or rename the column.",
        frame_of(lists[:1], score=["high"]),
    )
    with raises_text(f"there is no file {tmp_path / 'no.csv'}."):
        read_lists(tmp_path / "no.csv", log, points, length=20)
    nested = tmp_path / "nested.parquet"
    pl.DataFrame({"user": ["u1"], "item": [[1000, 1001]]}).write_parquet(nested)
    with raises_text(
        f"{nested}: column 'item' holds lists; expected one row for each user and item.",
        DataError,
    ):
        read_lists(nested, log, points, length=20)
