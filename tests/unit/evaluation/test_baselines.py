"""The three baselines against plain loops over one user at a time."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapas import UsageError
from tapas.data.baskets import basket_bounds
from tapas.evaluation import baselines, followers
from tapas.evaluation.baselines import CoOccurrence, MostPopular, UserMostFrequent

C = 11

baskets = st.lists(st.integers(0, C - 1), min_size=1, max_size=3)
logs = st.lists(st.lists(baskets, max_size=6), min_size=1, max_size=5)


def arrays(log):
    """items, times and offsets of `log`: users, each a list of baskets of items."""
    items = [i for user in log for basket in user for i in basket]
    times = [t for user in log for t, basket in enumerate(user) for _ in basket]
    offsets = np.cumsum([0] + [sum(map(len, user)) for user in log])
    return np.array(items, dtype=np.int32), np.array(times, dtype=np.int64), offsets


def train_events(log, offsets, share):
    """The end of each user's training events, at the end of a basket, and their counts."""
    ends, counts = [], np.zeros(C, dtype=np.int64)
    for u, user in enumerate(log):
        seen = [i for basket in user[: int(share * len(user))] for i in basket]
        ends.append(offsets[u] + len(seen))
        np.add.at(counts, seen, 1)
    return np.array(ends, dtype=np.int64), counts


def every_point(offsets):
    pairs = [(u, p) for u in range(len(offsets) - 1) for p in range(offsets[u], offsets[u + 1] + 1)]
    user, point = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return user, point


def fill(first, counts, excluded, k):
    popular = sorted((c for c in range(C) if counts[c]), key=lambda c: (-counts[c], c))
    chosen = list(dict.fromkeys(c for c in [*first, *popular] if c not in excluded))[:k]
    return chosen + [-1] * (k - len(chosen))


def followers_by_hand(log, ends, offsets, window):
    follow = [Counter() for _ in range(C)]
    for u, user in enumerate(log):
        events = [(t, i) for t, basket in enumerate(user) for i in basket][: ends[u] - offsets[u]]
        for time, item in events:
            later = [(t, i) for t, i in events if t > time]
            next_basket = [e for e in later if e[0] == time + 1]
            follow[item].update(i for _, i in later[: max(window, len(next_basket))])
    return follow


@given(
    log=logs,
    share=st.sampled_from([0, 0.5, 1]),
    k=st.integers(1, C + 2),
    exclude=st.booleans(),
    size=st.sampled_from([1, 40, 10**6]),
)
def test_every_baseline_is_its_definition(log, share, k, exclude, size):
    """However many users are ranked at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "ELEMENTS_PER_CHUNK", size)
        compare_with_definitions(log, share, k, exclude)


def compare_with_definitions(log, share, k, exclude):
    items, times, offsets = arrays(log)
    ends, counts = train_events(log, offsets, share)
    user, point = every_point(offsets)
    follow = followers_by_hand(log, ends, offsets, window=2)
    popular = MostPopular(items, offsets, counts).rank(user, point, k, exclude=exclude)
    favourites = UserMostFrequent(items, offsets, counts).rank(user, point, k, exclude=exclude)
    after = CoOccurrence(items, offsets, counts, times=times, train_end=ends, window=2, keep=C)
    after = after.rank(user, point, k, exclude=exclude)
    for row, (u, p) in enumerate(zip(user, point, strict=True)):
        history = items[offsets[u] : p].tolist()
        excluded = set(history) if exclude else set()
        assert popular[row].tolist() == fill([], counts, excluded, k)
        often = sorted(set(history), key=lambda c: (-history.count(c), history[::-1].index(c)))
        assert favourites[row].tolist() == fill(often, counts, excluded, k)
        last = {items[e] for e in range(offsets[u], p) if times[e] == times[p - 1]}
        votes = sum((follow[item] for item in last), Counter())
        best = sorted(votes, key=lambda c: (-votes[c], c))
        assert after[row].tolist() == fill(best, counts, excluded, k)


@given(log=logs, size=st.integers(1, 9), keep=st.integers(1, C), wanted=st.sets(st.integers(0, 9)))
def test_the_most_frequent_followers_of_wanted_items_are_kept(log, size, keep, wanted):
    """However many pairs are counted at a time."""
    items, times, offsets = arrays(log)
    ends, _ = train_events(log, offsets, 1)
    first, last = followers.following(basket_bounds(times, offsets)[1], offsets, ends, window=2)
    is_wanted = np.isin(np.arange(C), list(wanted))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(followers, "PAIRS_PER_CHUNK", size)
        starts, follower, count = followers.count_followers(items, first, last, is_wanted, keep)
    for item, each in enumerate(followers_by_hand(log, ends, offsets, window=2)):
        want = sorted(each.items(), key=lambda pair: (-pair[1], pair[0]))[:keep]
        mine = slice(starts[item], starts[item + 1])
        found = list(zip(follower[mine].tolist(), count[mine].tolist(), strict=True))
        assert found == (want if item in wanted else [])


def test_nothing_to_rank_is_no_error():
    items, times, offsets = arrays([[[0], [1]]])
    counts = np.bincount(items, minlength=C)
    none = np.empty(0, dtype=np.int64)
    for made in (
        MostPopular(items, offsets, counts),
        CoOccurrence(items, offsets, counts, times=times, train_end=offsets[1:]),
    ):
        assert made.rank(none, none, 4).shape == (0, 4)


def test_pairs_of_class_ids_may_exceed_int32():
    items = np.array([99_999, 70_000, 99_999, 70_000], dtype=np.int32)
    offsets = np.array([0, 2, 4])
    counts = np.bincount(items, minlength=100_000)
    times = np.array([0, 1, 0, 1])
    made = CoOccurrence(items, offsets, counts, times=times, train_end=offsets[1:])
    assert made.rank(np.array([0]), np.array([1]), 1).tolist() == [[70_000]]


def test_errors_name_the_bad_array():
    items, times, offsets = arrays([[[0], [1]], [[2]]])
    counts = np.bincount(items, minlength=C)
    made, one = MostPopular(items, offsets, counts), np.array([1])

    def following(times, train_end):
        return CoOccurrence(items, offsets, counts, times=times, train_end=train_end)

    calls = {
        "offsets are from 0 to 2; expected from 0 to 3, the number of items.": lambda: MostPopular(
            items, offsets[:-1], counts
        ),
        "offsets are empty; expected from 0 to 3": lambda: MostPopular(items, offsets[:0], counts),
        "items have ids from 0 to 2; expected 0 to 1, the classes of": lambda: MostPopular(
            items, offsets, counts[:2]
        ),
        "there are 1 users but 2 points; expected one point each.": lambda: made.rank(
            one, np.array([2, 3]), 2
        ),
        "users are from 2 to 2; expected 0 to 1.": lambda: made.rank(one + 1, one, 2),
        "point 1 is outside the events of user 1, 2 to 3. Points are": lambda: made.rank(
            one, one, 2
        ),
        "k must be at least 1, got 0": lambda: made.rank(one, one + 1, 0),
        "times and train_end have lengths 2 and 2; expected 3, one per event, and 2": (
            lambda: following(times[:2], offsets[1:])
        ),
        "train_end of user 1 is 1; expected 2 to 3. It is a": lambda: following(
            times, np.array([2, 1])
        ),
    }
    for words, call in calls.items():
        with pytest.raises(UsageError) as error:
            call()
        assert str(error.value).startswith(words)
