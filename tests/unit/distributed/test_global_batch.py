"""Padding between ranks, integers sent as floats, and combining the answers of shards."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tapas.distributed.global_batch import (
    AddLogSums,
    combine,
    pad,
    unpack_int64,
    unpad,
)
from tapas.rng import stream


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(1, 3))
def test_unpadding_undoes_padding_and_padding_is_zero(sizes, width):
    sizes = tuple(sizes)
    rows = torch.arange(1, sum(sizes) * width + 1).float().view(-1, width)
    parts = pad(rows, sizes)
    assert parts.shape == (len(sizes), max(sizes), width)
    assert torch.equal(unpad(parts, sizes), rows)
    for part, size in zip(parts, sizes, strict=True):
        assert not bool(part[size:].any())
        assert bool(part[:size].all())


@pytest.mark.parametrize("shape", [(4, 2), (1, 1), (1, 3), (0, 2), (4, 0), (0, 0)])
@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_ids_sent_as_floats_are_unchanged(shape, first):
    """Also above 2^53, which no float represents, and -1, which is a NaN in float32."""
    ids = torch.randint(-1, 2**62, shape, generator=stream(0, "ids"))
    words = torch.cat([torch.ones(shape[0], first), ids.view(torch.float32)], dim=1)
    assert torch.equal(unpack_int64(words[:, first:]), ids)


def test_logits_of_targets_come_from_their_shards():
    found = torch.randn(3, 4, 3, generator=stream(0, "found"))  # of 3 shards, 4 examples, 2 targets
    owner = torch.tensor([[0, 2], [1, 1], [2, 0], [0, 1]])
    positive, log_sum = combine(found, owner, 2)
    for b in range(4):
        assert positive[b].tolist() == [float(found[owner[b, t], b, t]) for t in range(2)]
    torch.testing.assert_close(log_sum, found[:, :, 2].logsumexp(dim=0))
    assert torch.equal(combine(found, owner, 1)[0], positive[:, :1])


def test_add_log_sums_has_the_gradient_of_logsumexp_and_none_for_an_empty_sum():
    part = torch.randn(3, 5, generator=stream(0, "part"), dtype=torch.float64)
    part[1, 2] = -torch.inf
    part[:, 4] = -torch.inf
    mine, reference = part.clone().requires_grad_(), part.clone().requires_grad_()
    total = AddLogSums.apply(mine)
    torch.testing.assert_close(total, part.logsumexp(dim=0))
    pull = torch.arange(1.0, 6.0, dtype=torch.float64)
    (total[:4] * pull[:4]).sum().backward()
    (reference.logsumexp(dim=0)[:4] * pull[:4]).sum().backward()
    torch.testing.assert_close(mine.grad[:, :4], reference.grad[:, :4])
    assert not bool(mine.grad[:, 4].any())
