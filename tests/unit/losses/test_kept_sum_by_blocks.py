"""Without native kernels a large (B, K) matrix is computed in blocks: the same numbers."""

import pytest
import torch

from tapas import native
from tapas.losses import kept_gradients, kept_log_sum, sampled_softmax
from tapas.rng import stream

B, L, K, D = 7, 3, 41, 5


@pytest.fixture(autouse=True)
def _torch_alone():
    with native.switched_off():
        yield


def given(scale=1.0):
    query = scale * torch.randn(B, D, generator=stream(0, "query"))
    weight = torch.randn(K, D, generator=stream(0, "weight"))
    offset = torch.randn(K, generator=stream(0, "offset"))
    ids = torch.arange(K) * 3 + 1
    own = ids[torch.randint(K, (B, L), generator=stream(0, "own"))]
    own[0], own[1, 1:], own[2] = -1, -1, own[2, 0]
    own[3] = torch.tensor([0, 500, 2])  # classes that nobody has drawn
    return query, weight, offset, ids, own


def both(numbers, grad, held, monkeypatch):
    monkeypatch.setattr(sampled_softmax, "HELD_AT_ONCE", held)
    log_sum, shares = kept_log_sum(*numbers)
    return log_sum, shares.matrix, kept_gradients(*numbers, shares=shares, grad=grad)


@pytest.mark.parametrize("held", [1, 3 * B, 10 * B + 4, B * K - 1])
def test_blocks_of_any_size_give_the_numbers_of_one_matrix_and_of_autograd(held, monkeypatch):
    numbers, grad = given(), torch.randn(B, generator=stream(0, "grad"))
    whole, share, gradients = both(numbers, grad, B * K, monkeypatch)
    blocked, nothing, again = both(numbers, grad, held, monkeypatch)
    assert share.shape == (B, K)
    assert nothing is None
    torch.testing.assert_close(blocked, whole)
    query, weight, offset = (x.double().requires_grad_() for x in numbers[:3])
    ids, own = numbers[3:]
    logit = query @ weight.t() + offset
    logit = logit.masked_fill((own[:, :, None] == ids).any(dim=1), -torch.inf)
    dense = torch.logsumexp(logit, dim=1)
    torch.testing.assert_close(blocked, dense.detach().float())
    want = torch.autograd.grad((dense * grad).sum(), (query, weight, offset))
    for one, other, truth in zip(again, gradients, want, strict=True):
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(one, truth.float())


def test_blocks_begin_above_the_limit_and_not_at_it(monkeypatch):
    numbers = given()
    monkeypatch.setattr(sampled_softmax, "HELD_AT_ONCE", B * K)
    assert kept_log_sum(*numbers)[1].matrix is not None
    monkeypatch.setattr(sampled_softmax, "HELD_AT_ONCE", B * K - 1)
    assert kept_log_sum(*numbers)[1].matrix is None


def test_an_example_that_owns_all_that_was_kept_has_no_sum_and_no_gradient(monkeypatch):
    query, weight, offset, ids, own = given()
    few = (query, weight[:3], offset[:3], ids[:3], own)
    own[4] = ids[:3]
    log_sum, _, gradients = both(few, torch.ones(B), 5, monkeypatch)
    assert log_sum.isneginf().nonzero().tolist() == [[4]]
    assert bool((gradients[0][4] == 0).all())
    assert all(bool(x.isfinite().all()) for x in gradients)


def test_logits_of_ten_thousand_stay_finite_in_blocks(monkeypatch):
    query, weight, _, ids, own = given()
    numbers = (query, weight, torch.linspace(-1e4, 1e4, K), ids, own)
    whole, _, gradients = both(numbers, torch.ones(B), B * K, monkeypatch)
    blocked, _, again = both(numbers, torch.ones(B), 4 * B, monkeypatch)
    torch.testing.assert_close(blocked, whole)
    for one, other in zip(again, gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_no_block_holds_more_than_the_limit(monkeypatch):
    held, largest = 5 * B, []
    inner = torch.addmm
    monkeypatch.setattr(torch, "addmm", lambda *x: largest.append(inner(*x)) or largest[-1])
    both(given(), torch.ones(B), held, monkeypatch)
    assert len(largest) == 2 * -(-K // 5)
    assert max(x.numel() for x in largest) == held


def test_a_row_that_is_no_number_shows(monkeypatch):
    query, weight, offset, ids, own = given()
    weight[20] = torch.nan
    monkeypatch.setattr(sampled_softmax, "HELD_AT_ONCE", 5 * B)
    assert bool(kept_log_sum(query, weight, offset, ids, torch.full_like(own, -1))[0].isnan().all())
