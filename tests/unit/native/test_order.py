"""The computed order of classes, natively and in PyTorch: the same numbers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tapas import native
from tapas.permutation import PRIME, ROUNDS, Permutation
from tapas.rng import stream


def both(order, ids):
    """permute and inverse of `ids`, natively."""
    found = order.permute(ids), order.inverse(ids)
    with native.switched_off():
        doubles = order.permute(ids), order.inverse(ids)
    for one, double in zip(found, doubles, strict=True):
        assert torch.equal(one, double)
    return found


@given(st.integers(1, 2**61), st.integers(0, 9), st.integers(1, 2_000))
def test_the_kernel_is_its_double(size, seed, count):
    draws = torch.rand(count, generator=stream(seed, "ids"), dtype=torch.float64)
    both(Permutation(size, stream(seed, "order")), (draws * (size - 1)).long().clamp(max=size - 1))


@pytest.mark.parametrize("size", [1, 2, 3, 511, 512, 513, 1024, 2**20, 2**20 + 1, 2**61])
def test_ends_and_shapes_are_kept(size):
    order = Permutation(size, stream(1, "order"))
    ids = torch.tensor([[0, size - 1], [size // 2, size // 3]])
    for found in both(order, ids):
        assert found.shape == ids.shape
        assert 0 <= int(found.min()) <= int(found.max()) < size
    for found in both(order, ids.t()):  # does not lie in memory as it reads
        assert found.shape == (2, 2)
    both(order, ids[:0])


def test_it_is_the_formula():
    """One round by hand, in Python's own numbers, for a size that no number leaves."""
    order = Permutation(2**12, stream(3, "order"))
    keys = order._keys.tolist()
    assert (len(keys), order._half) == (ROUNDS, 6)
    for number in (0, 1, 77, 4095):
        left, right = number >> 6, number & 63
        for factor, shift in keys:
            mixed = (right * factor + shift) % PRIME
            mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D % PRIME
            left, right = right, left ^ ((mixed ^ (mixed >> 13)) & 63)
        assert int(order.permute(torch.tensor(number))) == (left << 6) | right
