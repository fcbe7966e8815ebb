"""Native draws and permutations equal those of PyTorch bit by bit."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import tapas.native as native
from tapas import Squashed, Uniform
from tapas.permutation import PRIME, ROUNDS, Permutation
from tapas.proposals.base import first_to_arrive
from tapas.proposals.floor_and_head import draw_classes
from tapas.rng import stream
from tapas.tables.second_pass import draw_second_pass

pytestmark = pytest.mark.skipif(
    native.state() != "in use on CPUs", reason=f"native kernels are {native.state()}"
)


def slow_distinct(draws, k):
    """(end, ids, repeats) of the first k distinct draws, in plain Python; None if too few."""
    found = {}
    for number, one in enumerate(draws):
        if one not in found and len(found) == k:
            ids = sorted(found)
            return number, ids, [found[c] for c in ids]
        found[one] = found.get(one, -1) + 1
    return None


@given(
    draws=arrays(np.int64, st.integers(1, 60), elements=st.integers(0, 40)),
    k=st.integers(1, 20),
    far=st.sampled_from([1, 3, 1_000_003, 10**14]),  # near: by bits; far: by hashing
)
def test_the_first_distinct_draws_equal_a_loop(draws, k, far):
    draws = draws * far
    got = native.distinct(torch.from_numpy(draws), k, 41 * far)
    want = slow_distinct(draws.tolist(), k)
    if want is None:
        assert got is None
    else:
        assert (got[0], got[1].tolist(), got[2].tolist()) == want


@given(
    weights=arrays(
        np.float64,
        st.integers(2, 300),
        elements=st.sampled_from([0.0, 1e-320, 1e-300, 1e-9, 0.3, 1.0, 7.0]),
    ),
    k=st.integers(1, 299),
    key=st.integers(0, 2**63 - 1),
)
def test_the_first_arrivals_equal_those_of_pytorch(weights, k, key):
    k = min(k, len(weights) - 1)
    probability = torch.from_numpy(weights) / max(weights.sum(), 1e-300)
    fast, slow = native.race(probability, key, k), first_to_arrive(probability, key, k)
    assert (fast is None) == (slow is None) == (int((probability > 0).sum()) < k)
    if fast is not None:
        assert torch.equal(fast[0], slow[0])
        torch.testing.assert_close(fast[1], slow[1], rtol=1e-6, atol=1e-6)


@given(
    counts=arrays(np.int64, st.integers(1, 60), elements=st.integers(0, 99)),
    more=st.integers(0, 10**12),
    count=st.integers(1, 200),
    key=st.integers(0, 2**63 - 1),
)
def test_draws_of_a_key_equal_those_of_numpy_bit_by_bit(counts, more, count, key):
    """With classes that were never seen, up to more than 2^32 of them."""
    counts[0] += 1
    seen = torch.from_numpy(counts)
    proposal = Squashed((torch.arange(len(seen)), seen), num_classes=len(seen) + more)
    fast = draw_classes(proposal._parts, key, count)
    with native.switched_off():
        slow = draw_classes(proposal._parts, key, count)
    assert torch.equal(fast, slow)


@pytest.mark.parametrize("k", [1, 77, 2000])
def test_samples_equal_those_of_pytorch_bit_by_bit(k):
    counts = torch.arange(20_001) ** 2
    for proposal in (Squashed(counts, alpha=0.75), Uniform(3_000_000_000)):
        fast = proposal.sample(k, generator=stream(0, "sample"))
        with native.switched_off():
            slow = proposal.sample(k, generator=stream(0, "sample"))
        assert torch.equal(fast.ids, slow.ids)
        torch.testing.assert_close(fast.log_q, slow.log_q, rtol=1e-6, atol=1e-6)


@given(
    num_queries=st.integers(1, 200),
    num_targets=st.integers(1, 3),
    dim=st.integers(1, 9),
    size=st.integers(0, 200),
    key=st.integers(0, 2**63 - 1),
    data=st.data(),
)
def test_the_draws_of_a_second_pass_equal_those_of_numpy(
    num_queries, num_targets, dim, size, key, data
):
    choose = data.draw(st.integers(0, num_queries - 1))
    query = torch.arange(num_queries * dim).view(num_queries, dim).float()
    target = torch.arange(num_queries * num_targets).view(num_queries, num_targets)
    fast = draw_second_pass(key, query, target, choose, size)
    with native.switched_off():
        slow = draw_second_pass(key, query, target, choose, size)
    for one, double in zip(fast, slow, strict=True):
        assert torch.equal(one, double)
    chosen, of_target, noise = fast
    assert len(chosen) == len(of_target) == (choose or num_queries)
    assert torch.equal(chosen[:, 0] * num_targets, (of_target[:, 0] * dim).float())
    assert bool((chosen[1:, 0] > chosen[:-1, 0]).all())
    assert bool(((noise > 0) & (noise <= 1)).all())


def test_every_query_is_chosen_as_often_and_noise_is_uniform():
    """20,000 keys, 7 of 20 queries: counts and means within 4.5 standard errors (1 in 7,000)."""
    query, target, keys = torch.arange(20.0)[:, None], torch.zeros(20, 1).long(), 20_000
    times, total = torch.zeros(20), torch.zeros(3).double()
    for key in range(keys):
        chosen, _, noise = draw_second_pass(key, query, target, 7, 3)
        times[chosen[:, 0].long()] += 1
        total += noise
    error = (keys * 0.35 * 0.65) ** 0.5
    assert float((times - 0.35 * keys).abs().max()) < 4.5 * error
    assert float((total / keys - 0.5).abs().max()) < 4.5 * (1 / 12 / keys) ** 0.5


def both(order, ids):
    """`permute` and `inverse` of `ids`, checked against PyTorch."""
    found = order.permute(ids), order.inverse(ids)
    with native.switched_off():
        doubles = order.permute(ids), order.inverse(ids)
    for one, double in zip(found, doubles, strict=True):
        assert torch.equal(one, double)
    return found


@given(st.integers(1, 2**61), st.integers(0, 9), st.integers(1, 2_000))
def test_permutations_equal_those_of_pytorch(size, seed, count):
    draws = torch.rand(count, generator=stream(seed, "ids"), dtype=torch.float64)
    both(Permutation(size, stream(seed, "order")), (draws * (size - 1)).long().clamp(max=size - 1))


@pytest.mark.parametrize("size", [1, 2, 3, 511, 512, 513, 1024, 2**20, 2**20 + 1, 2**61])
def test_a_permutation_keeps_shapes_and_handles_the_first_and_last_id(size):
    order = Permutation(size, stream(1, "order"))
    ids = torch.tensor([[0, size - 1], [size // 2, size // 3]])
    for found in both(order, ids):
        assert found.shape == ids.shape
        assert 0 <= int(found.min()) <= int(found.max()) < size
    for found in both(order, ids.t()):  # not contiguous
        assert found.shape == (2, 2)
    both(order, ids[:0])


def test_a_permutation_follows_its_formula():
    """In Python integers, for a size without cycle walking."""
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
