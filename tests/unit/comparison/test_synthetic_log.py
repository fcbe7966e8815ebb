"""The made-up log: the rule it states is the rule behind it."""

import re

import numpy as np
import polars as pl
import pytest

from tapas import UsageError
from tapas.comparison.synthetic_log import SyntheticLogConfig, group_words, write_synthetic_log

CONFIG = SyntheticLogConfig(
    num_users=400, num_items=103, num_groups=7, baskets_per_user=30, items_per_basket=3
)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    write_synthetic_log(path, CONFIG)
    return pl.read_parquet(path)


def test_it_has_the_shape_asked_for(log):
    assert log.columns == ["user", "item", "time"]
    assert len(log) == 400 * 30 * 3
    assert (log["item"].min(), log["user"].max(), log["time"].max()) == (0, 399, 29)
    assert log["item"].max() < 103


def test_a_basket_is_of_one_group_and_the_next_follows_by_habit(log):
    groups = log["item"].to_numpy().reshape(400, 30, 3) % 7
    assert (groups == groups[:, :, :1]).all()
    here, there = groups[:, :-1, 0], groups[:, 1:, 0]
    follows = (there == (here + 1) % 7).mean()
    chance = 0.8 + 0.2 / 7
    error = np.sqrt(chance * (1 - chance) / here.size)
    assert abs(follows - chance) < 4 * error  # a correct rule fails 1 seed in 16,000


def test_inside_a_group_items_follow_zipf(log):
    item = log["item"].to_numpy()
    rank = item[item % 7 == 2] // 7
    chance = 1 / np.arange(1, 16)
    chance /= chance.sum()
    observed = np.bincount(rank, minlength=15) / len(rank)
    error = np.sqrt(chance * (1 - chance) / len(rank))
    assert (np.abs(observed - chance) < 5 * error).all()  # 15 of them: fails 1 seed in 100,000


def test_the_same_seed_gives_the_same_log(tmp_path):
    for name in ("a.parquet", "b.parquet"):
        write_synthetic_log(tmp_path / name, CONFIG)
    assert pl.read_parquet(tmp_path / "a.parquet").equals(pl.read_parquet(tmp_path / "b.parquet"))


def test_an_item_is_told_by_its_group():
    assert group_words(16, 7) == "item 16 of group 2"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_groups": 9, "num_items": 8}, "num_groups is 9, but there are only 8 items."),
        ({"habit": 1.1}, "habit must be between 0 and 1, got 1.1."),
        ({"num_users": 0}, "num_users must be at least 1, got 0."),
    ],
)
def test_a_log_that_cannot_be_made_is_refused(options, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        SyntheticLogConfig(**options)
