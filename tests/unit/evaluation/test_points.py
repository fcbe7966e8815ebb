"""Evaluation points are starts of baskets, fairly spread; a user is in one block."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints
from tapas.evaluation.points import (
    NUM_BLOCKS,
    block_sums,
    describe_points,
    sample_users,
    spread_points,
)


def a_log(users):
    """A log of `users`, lists of basket sizes; times continue where the last user's stopped."""
    times, ends, time = [], [0], 0
    for sizes in users:
        for size in sizes:
            times += [time] * size
            time += 1
        time -= 1  # the next user's first basket has the time of this one's last
        ends.append(len(times))
    arrays = {"items": np.arange(len(times)), "times": np.array(times), "offsets": np.array(ends)}
    return EventLog(Path("nowhere"), arrays, {"items": len(times)})


def hold_out(users):
    """The points that hold out all baskets but the first of users with at least two."""
    rows, start = [], 0
    for user, sizes in enumerate(users):
        if len(sizes) > 1:
            rows.append((user, start + sizes[0], start + sum(sizes)))
        start += sum(sizes)
    return EvalPoints(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)


def starts_of(users):
    """The starts of the baskets that `hold_out` holds out, by user."""
    found, start = {}, 0
    for user, sizes in enumerate(users):
        starts = [start + sum(sizes[:b]) for b in range(len(sizes))]
        if len(sizes) > 1:
            found[user] = starts[1:]
        start += sum(sizes)
    return found


def spread(users, most, seed=0):
    return spread_points(a_log(users), hold_out(users), most, seed=seed)


def as_tuples(points):
    parts = (part.tolist() for part in (points.user, points.point, points.limit))
    return list(zip(*parts, strict=True))


def test_a_sample_of_users_keeps_their_first_points_and_smaller_samples_begin_larger_ones():
    held_out = hold_out([[1, 2, 1]] * 40)
    whole = as_tuples(sample_users(held_out, 99))
    assert sorted(whole) == as_tuples(held_out)
    assert whole != as_tuples(held_out)
    for most in (1, 7, 40):
        assert as_tuples(sample_users(held_out, most)) == whole[:most]
    assert len(sample_users(held_out[:0], 5)) == 0


def test_points_in_words():
    assert describe_points(1, 1, 1, 9) == (
        "1 user, one point each; the next item of each is to be found among all 9."
    )
    assert describe_points(3_000, 41_000, 5, 9_999).startswith(
        "3,000 of 41,000 users, one point each; the next 5 items of each are "
    )


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=6), min_size=1, max_size=9),
    st.integers(1, 40),
)
def test_points_are_starts_of_held_out_baskets_spread_evenly_over_users(users, most):
    starts, held_out = starts_of(users), hold_out(users)
    found = spread(users, most)
    limit = dict(zip(held_out.user.tolist(), held_out.limit.tolist(), strict=True))
    for user, point, end in as_tuples(found):
        assert point in starts[user]
        assert end == limit[user]
    assert len(set(found.point.tolist())) == len(found)  # distinct
    assert {part.dtype for part in (found.user, found.point, found.limit)} == {np.dtype(np.int64)}
    if not starts:
        assert len(found) == 0
        return
    each = -(-most // len(starts))
    able = {user: min(each, len(points)) for user, points in starts.items()}
    assert len(found) == min(most, sum(able.values()))
    counts = {user: found.user.tolist().count(user) for user in starts}
    assert all(counts[user] <= able[user] for user in starts)
    if sum(able.values()) <= most:
        assert counts == able


def test_the_order_is_random_but_reproducible():
    users = [[1, 2, 1, 3, 1]] * 11
    found = as_tuples(spread(users, 44))
    assert found == as_tuples(spread(users, 44))
    assert found != sorted(found)
    assert sorted(found) == sorted(as_tuples(spread(users, 44, seed=1)))
    assert found != as_tuples(spread(users, 44, seed=1))
    few = as_tuples(spread(users, 5))  # fewer than there are users: one of each
    assert len({user for user, _, _ in few}) == len(few) == 5


@pytest.mark.parametrize("most", [3, 7, 28])
def test_the_first_few_are_a_fair_sample(most):
    """Each of the 28 starts is equally often among the first three.

    A false alarm in 1 of 10,000 seeds for each of three cases. The three points of a draw are
    distinct, which makes the chi-square statistic slightly smaller than its distribution.
    """
    users = [[2, 1, 3, 1, 2]] * 7
    draws = 800
    every = [start for starts in starts_of(users).values() for start in starts]
    count = dict.fromkeys(every, 0)
    for seed in range(draws):
        for point in spread(users, most, seed=seed).point[:3].tolist():
            count[point] += 1
    expected = 3 * draws / len(every)
    square = sum((seen - expected) ** 2 / expected for seen in count.values())
    assert square < stats.chi2.isf(1e-4, len(every) - 1)


def test_blocks_add_up_and_each_user_is_in_one_block():
    draw = np.random.default_rng(0)
    user, value = draw.integers(173, size=997), draw.normal(size=997)
    sums = block_sums(value, user)
    assert len(sums) == NUM_BLOCKS == 50
    assert abs(sum(sums) - value.sum()) < NUM_BLOCKS * 1e-5  # rounded to five places
    slow = [0.0] * 50
    for who, what in zip(user.tolist(), value.tolist(), strict=True):
        slow[who % 50] += what
    assert np.allclose(sums, slow, rtol=0, atol=6e-6)
    assert block_sums(value[:0], user[:0]) == [0.0] * 50
