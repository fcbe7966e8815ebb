"""Flat lists of rows against plain loops over the rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tapas import ragged

C = 7
ranges = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=6)


@given(sizes=st.lists(st.integers(0, 9), max_size=12), most=st.integers(1, 15))
def test_chunks_are_all_rows_in_order_and_none_is_larger_than_it_may_be(sizes, most):
    found = list(ragged.chunks(np.array(sizes, dtype=np.int64), most))
    assert [row for some in found for row in range(len(sizes))[some]] == list(range(len(sizes)))
    assert all(sum(sizes[some]) <= most or some.stop - some.start == 1 for some in found)


@given(ranges=ranges, items=st.lists(st.integers(0, C - 1), min_size=14, max_size=14))
def test_flat_lists_are_loops_over_rows(ranges, items):
    start, length = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    items, stop = np.array(items, dtype=np.int32), start + length
    position, row = ragged.spans(start, stop)
    each = [list(range(s, e)) for s, e in zip(start, stop, strict=True)]
    assert position.tolist() == [p for some in each for p in some]
    assert row.tolist() == [r for r, some in enumerate(each) for _ in some]
    assert ragged.places(row).tolist() == [place for some in each for place in range(len(some))]
    keys = ragged.distinct_keys(items, start, stop, C)
    distinct = [sorted({int(items[p]) for p in some}) for some in each]
    assert keys.tolist() == [r * C + item for r, some in enumerate(distinct) for item in some]
    wanted = np.arange(len(each) * C).reshape(-1, C)
    there = [[item in some for item in range(C)] for some in distinct]
    assert ragged.holds(keys, wanted).tolist() == there
    table = ragged.padded(*np.divmod(keys, C), len(each))
    longest = max([1, *map(len, distinct)])
    assert table.tolist() == [some + [-1] * (longest - len(some)) for some in distinct]
