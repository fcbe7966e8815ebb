"""The synthetic log follows its stated distribution."""

import re

import numpy as np
import polars as pl
import pytest

from tapas import UsageError
from tapas.comparison.synthetic_log import (
    SyntheticLogConfig,
    cached_synthetic_log,
    rank_by_truth,
    write_synthetic_log,
)
from tapas.data.prepare import prepare_log
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig, split_log
from tapas.evaluation.points import spread_points

CONFIG = SyntheticLogConfig(
    num_users=400, num_items=103, num_groups=7, baskets_per_user=30, items_per_basket=3
)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    write_synthetic_log(path, CONFIG)
    return pl.read_parquet(path)


def test_it_has_the_configured_shape(log):
    assert log.columns == ["user", "item", "time"]
    assert len(log) == 400 * 30 * 3
    assert (log["item"].min(), log["user"].max(), log["time"].max()) == (0, 399, 29)
    assert log["item"].max() < 103


def test_a_basket_has_one_group_and_the_next_one_repeats_it_by_habit(log):
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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_groups": 9, "num_items": 8}, "num_groups is 9, but there are only 8 items."),
        ({"habit": 1.1}, "habit must be between 0 and 1, got 1.1."),
        ({"num_users": 0}, "num_users must be at least 1, got 0."),
    ],
)
def test_impossible_options_are_an_error(options, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        SyntheticLogConfig(**options)


TINY = SyntheticLogConfig(
    num_users=60, num_items=53, num_groups=4, baskets_per_user=7, items_per_basket=2, exponent=0.9
)


def true_chances(made):
    """(groups, items): P(item | last basket of a group), from the documentation."""
    most = -(-made.num_items // made.num_groups)
    zipf = 1 / np.arange(1, most + 1) ** made.exponent
    in_group = np.zeros((made.num_groups, made.num_items))
    for group in range(made.num_groups):
        members = np.arange(group, made.num_items, made.num_groups)
        for rank, weight in enumerate(zipf / zipf.sum()):
            in_group[group, members[rank % len(members)]] += weight
    after = np.zeros_like(in_group)
    for group in range(made.num_groups):
        following = in_group[(group + 1) % made.num_groups]
        after[group] = made.habit * following + (1 - made.habit) * in_group.mean(axis=0)
    return after


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    cache = tmp_path_factory.mktemp("tiny")
    source = LogSource(
        files=(str(cached_synthetic_log(TINY, cache)),), user="user", item="item", time="time"
    )
    log = prepare_log(source, cache)
    return log, spread_points(log, split_log(log, SplitConfig(kind="last")).test, 100)


def test_the_truth_is_that_of_the_generator(tiny):
    log, points = tiny
    chances = true_chances(TINY)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    key = np.array(log.item_keys.keys(np.arange(log.num_items)))
    target = log.items[points.point][:, None].astype(np.int64)
    ranked, loss = rank_by_truth(TINY, log, points, target)
    for row, wanted, found, cost in zip(points.point, target[:, 0], ranked, loss, strict=True):
        chance = chances[key[log.items[row - 1]] % TINY.num_groups]
        listed = chance[key[found.numpy()]]
        best = np.sort(chance[key])[::-1][:20]
        np.testing.assert_allclose(listed, best)
        assert cost == pytest.approx(-np.log(chance[key[wanted]]))
    padded = np.concatenate([target, np.full_like(target, -1)], axis=1)
    np.testing.assert_array_equal(rank_by_truth(TINY, log, points, padded)[1], loss)
