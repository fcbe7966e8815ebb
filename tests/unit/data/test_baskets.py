"""Baskets against loops over events."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tapas.data.baskets import basket_bounds, baskets_ago, next_baskets

users = st.lists(st.lists(st.integers(0, 3), max_size=6).map(sorted), min_size=1, max_size=5)


@given(users=users)
def test_a_basket_has_the_adjacent_events_of_a_user_with_the_same_time(users):
    times = np.array([t for user in users for t in user], dtype=np.int64)
    offsets = np.append(0, np.cumsum([len(user) for user in users]))
    start, end = basket_bounds(times, offsets)
    for first, user in zip(offsets, users, strict=False):
        for place, time in enumerate(user):
            assert start[first + place] == first + user.index(time)
            assert end[first + place] == start[first + place] + user.count(time)


@given(users=users, cut=st.integers(0, 3))
def test_the_next_basket_has_the_events_with_the_next_time_before_the_cut(users, cut):
    times = np.array([t for user in users for t in user], dtype=np.int64)
    offsets = np.append(0, np.cumsum([len(user) for user in users]))
    counted = [sum(time < cut for time in user) for user in users]  # the cut is between baskets
    events = [first + n for first, size in zip(offsets, counted, strict=False) for n in range(size)]
    limits = [
        first + size for first, size in zip(offsets, counted, strict=False) for _ in range(size)
    ]
    found = next_baskets(times, np.array(events, dtype=np.int64), np.array(limits, dtype=np.int64))
    for event, limit, start, stop in zip(events, limits, *found, strict=True):
        later = [n for n in range(event, limit) if times[n] > times[event]]
        following = [n for n in later if times[n] == times[later[0]]]
        assert list(range(start, stop)) == following
        assert start >= event


@given(users=users, padding=st.integers(0, 3))
def test_ages_count_baskets_from_the_last_one_and_padding_has_0(users, padding):
    lengths = np.array([len(user) for user in users])
    width = max(1, lengths.max()) + padding
    times = np.full((len(users), width), 3)  # the time of many last baskets
    for row, user in zip(times, users, strict=True):
        row[: len(user)] = user
    for row, user in zip(baskets_ago(times, lengths).tolist(), users, strict=True):
        distinct = sorted(set(user), reverse=True)
        want = [distinct.index(time) + 1 for time in user]
        assert row == want + [0] * (width - len(user))
