"""Counted transitions against loops over events."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle.mixture import transitions

from tapas.mixture import count_transitions
from tapas.mixture import transitions as module

C = 7
baskets = st.lists(st.integers(0, C - 1), min_size=1, max_size=3)
logs = st.lists(st.lists(baskets, max_size=5), min_size=1, max_size=4)


def arrays(log):
    """items, times and offsets of `log`: users, each a list of baskets of items."""
    items = [i for user in log for basket in user for i in basket]
    times = [t for user in log for t, basket in enumerate(user) for _ in basket]
    sizes = [sum(map(len, user)) for user in log]
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int64)
    return np.array(items, dtype=np.int32), np.array(times, dtype=np.int64), offsets


def dense(found):
    """(C, C) the counts of `found`; those of a row must fall."""
    num_classes = len(found.starts) - 1
    count = np.zeros((num_classes, num_classes))
    for x in range(num_classes):
        mine = slice(int(found.starts[x]), int(found.starts[x + 1]))
        followers, counts = found.followers[mine].tolist(), found.counts[mine].tolist()
        assert len(set(followers)) == len(followers)
        assert counts == sorted(counts, reverse=True)
        count[x, followers] = counts
    return count


@given(
    log=logs, share=st.floats(0, 1), window=st.integers(1, 4), keep=st.integers(1, C),
    backward=st.sampled_from([0.0, 0.5, 1.0]), at_once=st.sampled_from([1, 5, 1 << 24]),
)  # fmt: skip
def test_counts_are_those_of_a_loop_over_events(log, share, window, keep, backward, at_once):
    """Also if training ends within a basket, and however many pairs are counted at a time."""
    items, times, offsets = arrays(log)
    assume(len(items))
    end = offsets[:-1] + np.floor(share * np.diff(offsets)).astype(np.int64)
    options = {"window": window, "backward": backward}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAIRS_AT_ONCE", at_once)
        found = count_transitions(items, times, offsets, end, C, **options, keep=keep)
    assert [x.dtype for x in (found.starts, found.followers, found.counts)] == [
        torch.int64, torch.int32, torch.float32
    ]  # fmt: skip
    assert bool((found.counts > 0).all())
    for mine, all_of_them in zip(
        dense(found), transitions(items, times, offsets, end, C, **options), strict=True
    ):
        kept = mine > 0
        np.testing.assert_allclose(mine[kept], all_of_them[kept], rtol=1e-6)
        largest = np.sort(all_of_them)[::-1][:keep]
        np.testing.assert_allclose(np.sort(mine)[::-1][:keep], largest, rtol=1e-6)
        assert kept.sum() == (largest > 0).sum()


def test_an_event_is_followed_by_later_baskets_and_not_by_its_own():
    items, times, offsets = arrays([[[0, 1], [2, 3]], [[4]]])
    found = dense(count_transitions(items, times, offsets, offsets[1:], 5, backward=0.0))
    assert found.tolist() == [[0, 0, 1, 0.5, 0]] * 2 + [[0] * 5] * 3


def test_events_at_or_after_the_end_are_not_counted():
    items, times, offsets = arrays([[[0], [1], [2]], [[3], [4]]])
    found = dense(count_transitions(items, times, offsets, np.array([2, 4]), 5, backward=0.0))
    assert found.sum() == found[0, 1] == 1


def test_ties_at_the_last_place_are_kept_by_id():
    items, times, offsets = arrays([[[0], [3]], [[0], [1]], [[0], [2]], [[0], [2]]])
    found = dense(count_transitions(items, times, offsets, offsets[1:], 4, keep=2, backward=0.0))
    assert found[0].tolist() == [0, 1, 2, 0]


def test_rows_are_followers_with_padding():
    items, times, offsets = arrays([[[0], [1]], [[0], [2]], [[0], [2]]])
    found = count_transitions(items, times, offsets, offsets[1:], 4, window=1, backward=0.0)
    followers, count = found.rows(torch.tensor([[0, -1], [3, 1]]))
    assert followers.tolist() == [[[2, 1], [-1, -1]], [[-1, -1], [-1, -1]]]
    assert count.tolist() == [[[2, 1], [0, 0]], [[0, 0], [0, 0]]]
    assert found.num_bytes == 5 * 8 + 2 * 4 + 2 * 4


@pytest.mark.parametrize("rows", [0, 2])
def test_where_nothing_follows_rows_are_padding(rows):
    items, times, offsets = arrays([[[0]], [[1, 2]]])
    nothing = count_transitions(items, times, offsets, offsets[1:], 3)
    followers, count = nothing.rows(torch.zeros(rows, 5, dtype=torch.int64))
    assert followers.shape == count.shape == (rows, 5, 1)
    assert bool((followers == -1).all())
    assert not count.any()
