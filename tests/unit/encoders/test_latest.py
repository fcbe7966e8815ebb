"""The latest items of histories against slices of lists."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tapas.encoders import latest


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), most=st.integers(1, 7))
def test_the_latest_items_are_the_end_of_each_history(lengths, most):
    items = torch.zeros(len(lengths), 6, dtype=torch.int64)
    for row, length in enumerate(lengths):
        items[row, :length] = torch.arange(1, length + 1) + 10 * row
    found, kept = latest(items, torch.tensor(lengths), most)
    assert found.shape == (len(lengths), min(6, most))
    for row, length in enumerate(lengths):
        want = items[row, :length].tolist()[-most:]
        assert kept[row] == len(want)
        assert found[row, : len(want)].tolist() == want
