"""Binary losses against plain loops, and a sum over all classes computed in chunks."""

import numpy as np
import pytest
import torch
from error_text import raises_text
from hypothesis import given as drawn_from
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracle.binary import one_vs_all, softplus

from tapas.losses import binary
from tapas.losses.binary import all_classes_cost, binary_loss, leave_out, noise_cost
from tapas.rng import stream

B, L, K, C, D = 5, 3, 7, 31, 3
EXTREMES = st.sampled_from([-1e4, -50.0, 0.0, 0.5, 50.0, 1e4])


def draw(*shape, name):
    return torch.randn(*shape, generator=stream(0, name))


@drawn_from(
    positive=arrays(np.float32, (B, L), elements=EXTREMES),
    negative=arrays(np.float32, (B, K), elements=EXTREMES),
    weight=arrays(np.float32, (B, L), elements=st.sampled_from([0.0, 0.25, 3.0])),
    times=arrays(np.float32, (K,), elements=st.sampled_from([0.0, 1.0, 2.5])),
    pull=st.sampled_from([0.25, 1.0]),
)
def test_the_loss_is_that_of_the_loops_and_stable_up_to_ten_thousand(
    positive, negative, weight, times, pull
):
    score, other = (torch.from_numpy(x).requires_grad_() for x in (positive, negative))
    pushed = noise_cost(other, torch.from_numpy(times))
    loss = binary_loss(score, pushed, torch.from_numpy(weight), pull=pull)
    want = []
    for b in range(B):
        push = sum(times[k] * softplus(float(negative[b][k])) for k in range(K))
        pulls = [pull * softplus(-float(positive[b][i])) for i in range(L)]
        want.append(sum(weight[b][i] * (pulls[i] + push) for i in range(L)))
    np.testing.assert_allclose(loss.detach().numpy(), want, rtol=1e-5)
    positive_grad, other_grad = torch.autograd.grad(loss.sum(), (score, other))
    weights = torch.from_numpy(weight)
    np.testing.assert_allclose(
        positive_grad, -pull * weights * torch.sigmoid(-score.detach()), atol=1e-6
    )
    total = weights.sum(dim=1, keepdim=True) * torch.from_numpy(times)
    np.testing.assert_allclose(other_grad, total * torch.sigmoid(other.detach()), atol=1e-5)


def test_without_weights_and_times_everything_counts_once():
    score, other = draw(B, L, name="own"), draw(B, K, name="other")
    got = binary_loss(score, noise_cost(other))
    want = binary_loss(score, noise_cost(other, torch.ones(K)), torch.ones(B, L))
    torch.testing.assert_close(got, want)


def test_classes_left_out_have_no_loss_and_no_gradient():
    none = torch.zeros(B, 0)
    assert leave_out(none, torch.empty(0).long(), torch.zeros(B, L).long()).shape == (B, 0)
    assert torch.equal(noise_cost(none), torch.zeros(B))
    logit = draw(B, K, name="logit").requires_grad_()
    ids = torch.tensor([2, 3, 5, 8, 13, 21, 30])
    target = torch.tensor([[3, 30, -1], [4, 4, 4], [2, 2, -1], [-1, -1, -1], [21, 6, 8]])
    hit = (target[:, :, None] == ids).any(dim=1)
    score = leave_out(logit * 1.0, ids, target)
    assert torch.equal(score.isneginf(), hit)
    noise_cost(score).sum().backward()
    torch.testing.assert_close(logit.grad, torch.sigmoid(logit.detach()).masked_fill(hit, 0.0))


@pytest.mark.parametrize("scores", [1, 4 * B, 1 << 18])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_chunks_give_the_loss_and_gradients_of_autograd(monkeypatch, scores, scale):
    monkeypatch.setattr(binary, "SCORES_PER_CHUNK", scores)
    inputs = [
        draw(*shape, name=name).mul(size).requires_grad_()
        for name, shape, size in (("q", (B, D), scale), ("w", (C, D), 1.0), ("b", (C,), 1.0))
    ]
    target = torch.tensor([[4, 30], [-1, -1], [0, -1], [8, 8], [7, 29]])
    query, weight, bias = inputs
    grad = draw(B, name="grad")
    got = all_classes_cost(query, weight, bias, target)
    mine = (target[:, :, None] == torch.arange(C)).any(dim=1)
    scored = query @ weight.t() + bias
    want = torch.nn.functional.softplus(scored).masked_fill(mine, 0.0).sum(dim=1)
    torch.testing.assert_close(got, want)
    gradients = (torch.autograd.grad((cost * grad).sum(), inputs) for cost in (got, want))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * scale)


def test_no_chunk_holds_more_scores_than_it_may(monkeypatch):
    monkeypatch.setattr(binary, "SCORES_PER_CHUNK", 4 * B + 1)
    sizes = []
    inner = binary.mask_hits
    monkeypatch.setattr(
        binary, "mask_hits", lambda s, *rest: sizes.append(s.numel()) or inner(s, *rest)
    )
    rows = torch.zeros(C, D, requires_grad=True)
    target = torch.zeros(B, 1).long()
    all_classes_cost(torch.zeros(B, D), rows, torch.zeros(C), target).sum().backward()
    assert max(sizes) == 4 * B
    assert sum(sizes) == 2 * B * C  # once forward and once backward


def test_all_classes_and_one_target_are_one_vs_all():
    score, target = draw(B, C, name="score"), torch.tensor([[4], [9], [0], [30], [4]])
    identity = torch.eye(C)
    pushed = all_classes_cost(score, identity, torch.zeros(C), target)
    got = binary_loss(score.gather(1, target), pushed)
    want = one_vs_all(score.double().tolist(), target.tolist(), [[1.0]] * B)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5)


def test_a_wrong_shape_is_refused():
    with raises_text("pushed has shape (4,); expected (B=5)."):
        binary_loss(torch.zeros(5, 2), torch.zeros(4))
    with raises_text("weight has shape (5, 3); expected (B=5, L=2)."):
        binary_loss(torch.zeros(5, 2), torch.zeros(5), torch.zeros(5, 3))
    with raises_text("times has shape (5,); expected (K=2)."):
        noise_cost(torch.zeros(5, 2), torch.zeros(5))
    with raises_text("bias has shape (2,); expected (C=5)."):
        all_classes_cost(*(torch.zeros(5, 2),) * 2, torch.zeros(2), torch.zeros(5, 1))
