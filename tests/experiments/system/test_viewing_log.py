"""The synthetic viewing log follows its stated distribution, also given the last event."""

import re

import numpy as np
import polars as pl
import pytest

from experiments.system.viewing_log import POWER, TEETH, ViewingLogConfig, write_viewing_log
from tapas import UsageError

USERS, ITEMS, INTERESTS, HABIT = 3_000, 400, 7, 0.8
CONFIG = ViewingLogConfig(
    num_users=USERS, num_items=ITEMS, mean_length=12, num_interests=INTERESTS, habit=HABIT
)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    write_viewing_log(path, CONFIG)
    return pl.read_parquet(path).filter(pl.col("user") < USERS)


def popularity(num_items):
    """(C,) probability of each item, the most popular first."""
    return np.diff((np.arange(num_items + 1) / num_items) ** POWER)


def on_combs(num_items):
    """(C, G) share of each interest in the events of each item, from lengths of intervals."""
    edges = np.concatenate([[0], np.cumsum(popularity(num_items))])
    cuts = np.arange(TEETH * INTERESTS + 1) / (TEETH * INTERESTS)
    low = np.maximum(edges[:-1, None], cuts[None, :-1])
    high = np.minimum(edges[1:, None], cuts[None, 1:])
    shared = np.maximum(high - low, 0).reshape(num_items, TEETH, INTERESTS).sum(axis=1)
    return shared / shared.sum(axis=1, keepdims=True)


def test_the_top_fifth_takes_three_fifths_of_the_events(log):
    """Events of a user are dependent, users are not: the error is that of a mean over users."""
    by_user = log.group_by("user").agg((pl.col("item") < ITEMS // 5).sum().alias("top"), pl.len())
    top, length = by_user["top"].to_numpy(), by_user["len"].to_numpy()
    rest = (top - 0.6 * length) / length.mean()
    assert abs(rest.mean()) < 4 * rest.std() / USERS**0.5  # a correct law fails 1 seed in 16,000


def test_every_item_has_its_share(log):
    """On the first event of each user, because these are independent."""
    first = log.filter(pl.col("time") == 0)["item"].to_numpy()
    chance = popularity(ITEMS)
    observed = np.bincount(first, minlength=ITEMS) / len(first)
    head = slice(0, 20)  # at least 18 events are expected of each
    error = np.sqrt(chance * (1 - chance) / len(first))
    assert (np.abs(observed - chance)[head] < 5 * error[head]).all()  # fails 1 seed in 10,000
    rest, seen = chance[20:].sum(), observed[20:].sum()
    assert abs(seen - rest) < 4 * np.sqrt(rest * (1 - rest) / len(first))  # 1 in 16,000


def test_the_next_event_has_the_same_interest_by_habit(log):
    """Overlap of the interests of two items that follow each other."""
    part, item, user = on_combs(ITEMS), log["item"].to_numpy(), log["user"].to_numpy()
    neighbours = user[1:] == user[:-1]
    alike = (part[item[:-1][neighbours]] * part[item[1:][neighbours]]).sum(axis=1)
    of_one_interest = _expected_alike(part, popularity(ITEMS))
    at_random = 1 / INTERESTS
    want = HABIT * of_one_interest + (1 - HABIT) * at_random
    rest = np.bincount(user[:-1][neighbours], alike - want, minlength=USERS)
    assert abs(rest.mean()) < 4 * rest.std() / USERS**0.5  # fails 1 seed in 16,000
    assert of_one_interest > 1.5 * at_random  # there is something to be learned
    strangers = (part[item[:-1][~neighbours]] * part[item[1:][~neighbours]]).sum(axis=1)
    error = strangers.std() / len(strangers) ** 0.5
    assert abs(strangers.mean() - at_random) < 4 * error  # users begin anew; 1 seed in 16,000


def _expected_alike(part, chance):
    """E[part[u] . part[v]] if u and v have the same interest."""
    given = part * chance[:, None] * INTERESTS  # P(item | interest), columns sum to 1
    assert given.sum(axis=0) == pytest.approx(1)
    mean = part.T @ given  # (G, G): expected part on interest h of an item of interest g
    return float((mean * mean).sum() / INTERESTS)


def test_every_item_occurs_even_with_few_events(tmp_path):
    config = ViewingLogConfig(num_users=3, num_items=501, num_interests=7, mean_length=10)
    write_viewing_log(tmp_path / "log.parquet", config)
    log = pl.read_parquet(tmp_path / "log.parquet")
    assert sorted(log["item"].unique()) == list(range(501))
    late = log.filter(pl.col("user") >= 3)
    assert len(late) == late["item"].n_unique()
    early = set(log.filter(pl.col("user") < 3)["item"])
    assert not early & set(late["item"])
    assert late.group_by("user").len()["len"].max() == 10
    assert late.select("user", "time").is_unique().all()
    assert late["item"].to_list() != sorted(late["item"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_interests": 9, "num_items": 8}, "num_interests is 9, but there are only 8 items."),
        ({"habit": 1.1}, "habit must be between 0 and 1, got 1.1."),
        ({"num_users": 0}, "num_users must be at least 1, got 0."),
        ({"mean_length": 1}, "mean_length must be at least 2, got 1."),
    ],
)
def test_impossible_options_are_an_error(options, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        ViewingLogConfig(**options)
