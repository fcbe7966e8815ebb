"""A keyed permutation of 0 .. n-1 and its inverse."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tapas import UsageError
from tapas.permutation import Permutation
from tapas.rng import stream

LARGE = 10**9 + 7


def order_of(size, seed):
    return Permutation(size, stream(seed, "order"))


def check_inverse(order, ids):
    assert torch.equal(order.inverse(order.permute(ids)), ids)
    assert torch.equal(order.permute(order.inverse(ids)), ids)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 31, 1024, 1025, 4097])
def test_the_inverse_undoes_it_for_all_ids(size):
    for seed in range(5):
        check_inverse(order_of(size, seed), torch.arange(size))


@given(st.integers(1, 3000), st.integers(0, 99))
def test_the_inverse_undoes_it_for_any_size_and_seed(size, seed):
    check_inverse(order_of(size, seed), torch.arange(size))


@given(st.lists(st.integers(0, LARGE - 1), min_size=1, max_size=50), st.integers(0, 99))
def test_the_inverse_undoes_it_among_a_billion(ids, seed):
    ids = torch.tensor([0, *ids, LARGE - 1])
    order = order_of(LARGE, seed)
    check_inverse(order, ids)
    moved = order.permute(ids)
    assert 0 <= int(moved.min()) <= int(moved.max()) < LARGE


def test_the_inverse_keeps_shapes_and_accepts_empty_tensors():
    order = order_of(31, 0)
    places = torch.arange(30).reshape(5, 6)
    assert torch.equal(order.inverse(places), order.inverse(places.reshape(-1)).reshape(5, 6))
    assert order.inverse(places[:0]).shape == (0, 6)
    assert torch.equal(order.inverse(places.int()), order.inverse(places))


def test_positions_out_of_range_are_an_error():
    with pytest.raises(UsageError) as error:
        order_of(31, 0).inverse(torch.tensor([31]))
    assert (
        str(error.value) == "positions holds class 31; expected ids from 0 to 30 (num_classes=31)."
    )
