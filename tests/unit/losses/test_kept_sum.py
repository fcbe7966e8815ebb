"""The sum over kept classes and its gradients, in three ways, against float64.

All numbers are small integers times a power of two, so that a logit is the same in float32 and
in float64, in whatever order it is summed: what is left to differ is the softmax.
"""

import math
from contextlib import nullcontext

import pytest
import torch

from tapas import native
from tapas.losses import kept_gradients, kept_log_sum, sampled_softmax
from tapas.rng import stream

B, L, K = 37, 2, 211


@pytest.fixture(params=["native", "matrix", "blocks"])
def way(request, monkeypatch):
    """The three ways to the same gradients."""
    if request.param == "native" and native.state() != "in use on CPUs":
        pytest.skip(f"native kernels are {native.state()}")
    if request.param == "blocks":
        monkeypatch.setattr(sampled_softmax, "HELD_AT_ONCE", 50 * B)
    with nullcontext() if request.param == "native" else native.switched_off():
        yield request.param


def integers(*shape, name):
    return torch.randint(-4, 5, shape, generator=stream(0, name)).float()


def given(dim=64, height=1.0, kind="apart"):
    """Logits that differ by `height`, or that differ by a few and are all near plus or minus it."""
    spread = height if kind == "apart" else 3
    unit = 2.0 ** round(
        math.log2(spread / (20 / 3 * math.sqrt(dim)))
    )  # 20/3: variance of `integers`
    query, weight = unit * integers(B, dim, name="query"), integers(K, dim, name="weight")
    offset = unit * integers(K, name="offset")
    if kind == "together":
        weight[:, 0] = 1.0
        query[:, 0] = unit * round(height / unit) * (1 - 2 * (torch.arange(B) % 2))
    ids = torch.arange(K) * 3 + 1
    target = ids[torch.randint(K, (B, L), generator=stream(0, "own"))]
    target[0] = -1  # padding
    target[1, 1] = 0  # a class that was not drawn
    target[2, 1] = target[2, 0]  # listed twice
    return query, weight, offset, ids, target


def both(numbers, grad):
    log_sum, shares = kept_log_sum(*numbers)
    return log_sum, kept_gradients(*numbers, shares=shares, grad=grad)


def check_against_float64(numbers):
    query, weight, offset, ids, target = numbers
    grad = 0.5 + torch.rand(B, generator=stream(0, "grad"))
    log_sum, got = both(numbers, grad)
    logit = query.double() @ weight.double().t() + offset
    assert torch.equal(torch.addmm(offset, query, weight.t()).double(), logit)
    logit = logit.masked_fill((target[:, :, None] == ids).any(dim=1), -torch.inf)
    torch.testing.assert_close(log_sum.double(), logit.logsumexp(dim=1), rtol=2e-7, atol=1e-6)
    torch.testing.assert_close(got[2].double().sum(), grad.double().sum(), rtol=1e-6, atol=0.0)
    pull = torch.softmax(logit, dim=1) * grad[:, None]
    for one, left, right in (
        (got[0], pull, weight),
        (got[1], pull.t(), query),
        (got[2], pull.t(), torch.ones(B)),
    ):
        error = (one.double() - left @ right.double()).abs()
        # Of the terms that are summed. A float32 exponential is off by 2e-7, that of a number near
        # -87, where it begins to vanish, by 1e-6; and 211 terms are added up.
        assert bool((error <= 2e-6 * (left @ right.double().abs()) + 1e-35).all())


@pytest.mark.parametrize("kind", ["together", "apart"])
@pytest.mark.parametrize("height", [1, 30, 300, 1e3, 1e4, 1e5])
@pytest.mark.parametrize("dim", [64, 1024])
def test_sums_and_gradients_are_those_of_float64_however_large_the_logits(way, dim, height, kind):
    check_against_float64(given(dim, height, kind))


@pytest.mark.parametrize("held", [1, 3 * B, 10 * B + 4, B * K - 1])
def test_blocks_may_have_any_size_and_none_holds_more_than_the_limit(held, monkeypatch):
    monkeypatch.setattr(sampled_softmax, "HELD_AT_ONCE", held)
    blocks, addmm = [], torch.addmm
    numbers = given()
    with native.switched_off():
        check_against_float64(numbers)
        monkeypatch.setattr(torch, "addmm", lambda *x: blocks.append(addmm(*x)) or blocks[-1])
        both(numbers, torch.ones(B))
    size = max(held // B, 1)
    assert len(blocks) == 2 * -(-K // size)  # forward, and again backward
    assert max(block.numel() for block in blocks) == size * B


def test_blocks_begin_above_the_limit_and_not_at_it(monkeypatch):
    with native.switched_off():
        monkeypatch.setattr(sampled_softmax, "HELD_AT_ONCE", B * K)
        assert kept_log_sum(*given())[1].matrix is not None
        monkeypatch.setattr(sampled_softmax, "HELD_AT_ONCE", B * K - 1)
        assert kept_log_sum(*given())[1].matrix is None


def test_a_confident_example_keeps_its_small_gradient(way):
    """The sum is far above the first scores, and only a small part of the loss."""
    query, weight, offset, ids, target = given()
    offset[100] = 44.0
    target[:] = -1
    _, (_, _, got) = both((query, weight, offset, ids, target), torch.full((B,), 1e-30))
    torch.testing.assert_close(got[100], torch.tensor(B * 1e-30), rtol=1e-6, atol=0.0)


def test_only_biases_of_minus_infinity_are_an_empty_sum(way):
    query, weight, offset, ids, target = given()
    log_sum, gradients = both((query, weight, offset - torch.inf, ids, target), torch.ones(B))
    assert bool(log_sum.isneginf().all())
    assert not any(bool(x.any()) for x in gradients)


def test_an_example_whose_targets_are_all_possible_classes_has_an_empty_sum_and_no_gradient(way):
    """The only class whose bias is not -inf, and the only two that were kept."""
    query, weight, offset, ids, target = given()
    only, owner = 20, torch.arange(B) == 5
    target[:], target[owner, 1] = -1, ids[only]
    possible = torch.where(torch.arange(K) == only, offset, -torch.inf)
    log_sum, (query_grad, _, offset_grad) = both(
        (query, weight, possible, ids, target), torch.ones(B)
    )
    assert torch.equal(log_sum.isneginf(), owner)
    assert torch.equal(query_grad, weight[only] * ~owner[:, None])
    assert torch.equal(offset_grad, (B - 1) * torch.eye(K)[only])
    target[owner] = ids[:2]
    log_sum, gradients = both((query, weight[:2], offset[:2], ids[:2], target), torch.ones(B))
    assert torch.equal(log_sum.isneginf(), owner)
    assert not gradients[0][owner].any()
    assert all(bool(x.isfinite().all()) for x in gradients)


def test_a_nan_row_shows_even_if_a_target_is_listed_twice(way):
    """Of two kept classes one is a target, listed twice; the other one is NaN."""
    query, weight, offset, ids, target = given()
    weight[0] = torch.nan
    target[:] = ids[1]
    assert bool(kept_log_sum(query, weight[:2], offset[:2], ids[:2], target)[0].isnan().all())
    target[:] = -1
    assert bool(kept_log_sum(query, weight, offset, ids, target)[0].isnan().all())
