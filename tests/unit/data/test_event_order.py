"""Events are sorted by user and time, baskets are sets, and the input order is irrelevant."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapas.data.event_order import sort_events

FAR = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(0, 3)
DAYS = SMALL.map(lambda d: d * 86_400_000_000)
SECONDS = st.integers(0, 10**8).map(lambda s: s * 1_000_000)
MOMENTS = st.integers(0, 2**50)


def sorted_rows(rows):
    user, time, item = (np.array(c) for c in zip(*rows, strict=True))
    events, num_repeated = sort_events(user.astype(np.uint32), time, item.astype(np.uint32))
    got = zip(events.user.tolist(), events.time.tolist(), events.item.tolist(), strict=True)
    return list(got), events.first.tolist(), num_repeated


@pytest.mark.parametrize("times", [SMALL, DAYS, SECONDS, MOMENTS, FAR | SMALL])
@pytest.mark.parametrize("largest", [3, 2**20, 2**32 - 2])
def test_events_become_a_sorted_set_whatever_their_order(times, largest):
    ids = SMALL | st.integers(0, largest)

    @settings(max_examples=20)
    @given(st.lists(st.tuples(ids, times, ids), min_size=1, max_size=40), st.randoms())
    def check(rows, random):
        got, first, num_repeated = sorted_rows(rows)
        assert sorted(got) == sorted(set(rows))
        assert [row[:2] for row in got] == sorted(row[:2] for row in got)
        assert num_repeated == len(rows) - len(got)
        assert first == [i == 0 or got[i - 1][:2] != got[i][:2] for i in range(len(got))]
        random.shuffle(rows)
        assert sorted_rows(rows)[0] == got

    check()


@pytest.mark.parametrize("far", [1, 1000, 2**30])
def test_all_orders_within_a_basket_are_equally_likely(far):
    num_baskets = 6000
    rows = [(0, time, item * far) for time in range(num_baskets) for item in range(3)]
    order = np.array([item for _, _, item in sorted_rows(rows)[0]]).reshape(num_baskets, 3) // far
    _, seen = np.unique(order, axis=0, return_counts=True)
    expected = num_baskets / 6
    assert len(seen) == 6
    # chi-square with 5 degrees of freedom is above 26 once in 11,000 hashes
    assert ((seen - expected) ** 2 / expected).sum() < 26
