"""The sampled softmax loss against plain loops, and against the full softmax it estimates."""

import numpy as np
import pytest
import torch
from error_text import raises_text
from hypothesis import given as drawn_from
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracle.losses import sampled_softmax
from oracle.selection import log_sum_exp
from torch.nn.functional import cross_entropy

from tapas.losses import kept_gradients, kept_log_sum, sampled_softmax_loss, target_costs
from tapas.rng import stream

pytestmark = pytest.mark.usefixtures("kernels")
B, L, K, C, D = 5, 3, 7, 31, 3


def draw(*shape, name):
    return torch.randn(*shape, generator=stream(0, name))


def counted_of(target):
    first = torch.zeros_like(target, dtype=torch.bool)
    for b, row in enumerate(target.tolist()):
        for place, class_id in enumerate(row):
            first[b, place] = class_id >= 0 and class_id not in row[:place]
    return first


def loss_of(query, weight, bias, target, ids, log_q, share):
    """The library's loss for targets (B, L) with weights `share`, from a dense table."""
    scores = (query @ weight.t() + bias).gather(1, target.clamp(min=0))
    positive = scores.masked_fill(target < 0, -torch.inf)
    log_sum, _ = kept_log_sum(query, weight[ids], bias[ids] - log_q, ids, target)
    return sampled_softmax_loss(positive, log_sum, share, counted_of(target))


@drawn_from(
    target=arrays(np.int64, (B, L), elements=st.integers(-2, 8)),
    share=arrays(np.float32, (B, L), elements=st.sampled_from([0.0, 0.25, 1.0, 3.0])),
    ids=st.sets(st.integers(0, 8), min_size=1),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
)
def test_padded_repeated_and_weighted_targets_are_those_of_the_loops(target, share, ids, scale):
    query, weight, bias = draw(B, D, name="q") * scale, draw(9, D, name="w"), draw(9, name="b")
    ids = torch.tensor(sorted(ids))
    log_q, target, share = draw(len(ids), name="log_q"), *map(torch.from_numpy, (target, share))
    got = loss_of(query, weight, bias, target, ids, log_q, share)
    logit = query.double() @ weight.double().t() + bias
    want = sampled_softmax(
        logit.gather(1, target.clamp(min=0)), share, logit[:, ids], ids, log_q, target
    )
    torch.testing.assert_close(got.double(), torch.tensor(want).double(), rtol=1e-5, atol=1e-4)


@drawn_from(
    logit=arrays(np.float32, (B, K), elements=st.sampled_from([-1e4, -50.0, 0.0, 0.5, 50.0, 1e4])),
    scores=arrays(np.float32, (B, 1), elements=st.sampled_from([-1e4, -1.0, 0.0, 50.0, 1e4])),
)
def test_a_single_target_is_that_of_the_loops_and_stable_up_to_ten_thousand(logit, scores):
    positive = torch.from_numpy(scores).requires_grad_()
    log_sum = torch.tensor([log_sum_exp(row) for row in logit.tolist()]).float().requires_grad_()
    ids, target = np.arange(K), np.full((B, 1), K)  # no candidate is a target
    want = sampled_softmax(scores, np.ones((B, 1)), logit, ids, np.zeros(K), target)
    for counted in (None, torch.ones(B, 1, dtype=torch.bool)):
        loss = sampled_softmax_loss(positive, log_sum, counted=counted)
        assert bool((loss >= 0).all())
        # float32 numbers around 10^4 are 0.001 apart, and so may be the two logarithms
        torch.testing.assert_close(loss.double(), torch.tensor(want).double(), rtol=1e-5, atol=2e-3)
        for gradient in torch.autograd.grad(loss.sum(), (positive, log_sum)):
            assert bool((gradient.abs() <= 1).all())


ONE = torch.tensor([[4], [9], [0], [30], [4]])
SEVERAL = torch.tensor([[4, 30, 8], [7, 7, 7], [5, 4, 4], [29, 3, 23], [2, 1, 6]])


@pytest.mark.parametrize(("target", "scale"), [(ONE, 1.0), (ONE, 1e4), (SEVERAL, 1.0)])
def test_sampling_every_class_once_is_the_full_cross_entropy(target, scale):
    """In value and gradient, for one target, and for weights of several that sum to one."""
    query, weight, bias = draw(B, D, name="q") * scale, draw(C, D, name="w"), draw(C, name="b")
    query.requires_grad_()
    share = torch.softmax(draw(*target.shape, name="share"), dim=1)
    logit = query @ weight.t() + bias
    soft = torch.zeros(B, C).scatter_add(1, target, share)
    want = cross_entropy(logit, soft, reduction="none")
    (want_grad,) = torch.autograd.grad(want.sum(), query)
    kept = (query.detach(), weight, bias, torch.arange(C), target)
    log_sum, shares = kept_log_sum(*kept)
    positive = logit.detach().gather(1, target).requires_grad_()
    log_sum.requires_grad_()
    several = () if target is ONE else (share, counted_of(target))
    loss = sampled_softmax_loss(positive, log_sum, *several)
    torch.testing.assert_close(loss, want)
    positive_grad, log_sum_grad = torch.autograd.grad(loss.sum(), (positive, log_sum))
    got_grad, _, _ = kept_gradients(*kept, shares=shares, grad=log_sum_grad)
    got_grad += (positive_grad[:, :, None] * weight[target]).sum(dim=1)
    torch.testing.assert_close(got_grad, want_grad)


def test_an_example_with_nothing_but_its_target_has_no_loss():
    positive = torch.tensor([[2.0]], requires_grad=True)
    log_sum = torch.tensor([-torch.inf], requires_grad=True)
    loss = sampled_softmax_loss(positive, log_sum)
    loss.sum().backward()
    assert (loss.item(), positive.grad.item(), log_sum.grad.item()) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("num_targets", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_an_example_of_only_padding_has_no_loss_and_no_gradient(num_targets, weighted):
    positive = torch.full((2, num_targets), -torch.inf)
    positive[1, 0] = 0.0
    positive.requires_grad_()
    log_sum = torch.zeros(2, requires_grad=True)
    weight = torch.tensor([[0.0], [1.0]]).expand(2, num_targets) if weighted else None
    loss = sampled_softmax_loss(positive, log_sum, weight)
    torch.testing.assert_close(loss, torch.tensor([0.0, np.log(2)]).float())
    loss.sum().backward()
    torch.testing.assert_close(log_sum.grad, torch.tensor([0.0, 0.5]))
    torch.testing.assert_close(positive.grad[:, 0], torch.tensor([0.0, -0.5]))
    assert not positive.grad[:, 1:].any()


def test_a_tiny_loss_is_not_rounded_away():
    loss = sampled_softmax_loss(torch.tensor([[40.0]]), torch.zeros(1))
    torch.testing.assert_close(loss, torch.tensor([np.exp(-40.0)]).float(), rtol=1e-5, atol=0)


def test_a_wrong_shape_is_refused_by_name():
    with raises_text("positive has shape (5,); expected (B, L)."):
        sampled_softmax_loss(torch.zeros(5), torch.zeros(5))
    with raises_text("log_sum has shape (4,); expected (B=5)."):
        sampled_softmax_loss(torch.zeros(5, 2), torch.zeros(4))


@pytest.mark.parametrize("num_targets", [1, 3])
def test_the_cost_of_a_target_is_the_loss_of_that_target_alone(num_targets):
    positive, log_sum = draw(B, num_targets, name="positive"), draw(B, name="log_sum")
    positive[2, -1] = -torch.inf
    cost = target_costs(positive, log_sum)
    assert cost.shape == (B, num_targets)
    for column in range(num_targets):
        alone = torch.zeros(B, num_targets)
        alone[:, column] = 1
        assert torch.equal(cost[:, column], sampled_softmax_loss(positive, log_sum, alone))
    partition = (positive.exp().sum(dim=1) + log_sum.exp()).log()
    want = (partition[:, None] - positive).masked_fill(positive.isneginf(), 0.0)
    torch.testing.assert_close(cost, want)
