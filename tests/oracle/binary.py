"""Losses that ask of each class by itself, and self-normalisation, in plain loops.

All take every score of every class, `score` (B, C), `target` (B, L) with negative for padding,
and `weight` (B, L), and give the (B,) losses in nats.
"""

import math

import numpy as np
import torch
from oracle.selection import log_sum_exp
from oracle.tables import dense_gradients

import tapas

B, L, C, D = 5, 3, 31, 4
TARGET = torch.tensor([[1, 5, 30], [7, 7, 2], [0, -100, -100], [4, 3, -100], [9, 9, 9]])
WEIGHT = torch.tensor(
    [[0.5, 1.25, 0.0], [0.3, 0.7, 2.0], [1.0, 9.0, 9.0], [0.2, 0.1, 9.0], [0.4, 0.5, 0.6]]
)


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def real_targets(target, weight):
    """For each example the (class, weight) of its targets that are no padding."""
    rows = zip(target, weight, strict=True)
    return [[(int(c), float(w)) for c, w in zip(*row, strict=True) if c >= 0] for row in rows]


def one_vs_all(score, target, weight):
    losses = []
    for b, mine in enumerate(real_targets(target, weight)):
        own = {c for c, _ in mine}
        no = sum(softplus(score[b][c]) for c in range(len(score[b])) if c not in own)
        losses.append(sum(w * (softplus(-score[b][c]) + no) for c, w in mine))
    return losses


def nce(score, target, weight, draws, log_q):
    """`draws` (k,) with repeats; `log_q` (C,) log-probability of each class as noise."""
    losses, log_k = [], math.log(len(draws))
    for b, mine in enumerate(real_targets(target, weight)):
        no = sum(softplus(score[b][c] - log_k - log_q[c]) for c in draws)
        losses.append(sum(w * (softplus(-(score[b][c] - log_k - log_q[c])) + no) for c, w in mine))
    return losses


def negative_sampling(score, target, weight, draws, negatives):
    losses = []
    for b, mine in enumerate(real_targets(target, weight)):
        own = {c for c, _ in mine}
        no = sum(softplus(score[b][c]) for c in draws if c not in own) * negatives / len(draws)
        losses.append(sum(w * (softplus(-score[b][c]) + no) for c, w in mine))
    return losses


def gbce(score, target, weight, sample, calibration):
    losses = []
    for b, mine in enumerate(real_targets(target, weight)):
        own = {c for c, _ in mine}
        alpha = len(sample) / len(score[b])
        beta = alpha * (calibration * (1 - 1 / alpha) + 1 / alpha)
        no = sum(softplus(score[b][c]) for c in sample if c not in own)
        losses.append(sum(w * (beta * softplus(-score[b][c]) + no) for c, w in mine))
    return losses


def self_normalised(score, target, weight, chosen, penalty):
    """`chosen` are the examples whose normaliser is computed."""
    losses = []
    for b, mine in enumerate(real_targets(target, weight)):
        log_z = log_sum_exp(list(score[b]))
        ratio = len(score) / len(chosen) if b in chosen else 0.0
        normaliser = ratio * (log_z + penalty * log_z**2)
        losses.append(sum(w * (normaliser - score[b][c]) for c, w in mine))
    return losses


def slope(function, array, *, by=1e-5):
    """Central differences of a number that is a `function` of a float64 `array`."""
    found = np.empty_like(array)
    for place in np.ndindex(array.shape):
        up, down = array.copy(), array.copy()
        up[place] += by
        down[place] -= by
        found[place] = (function(up) - function(down)) / (2 * by)
    return found


def biased_table(**options):
    """Rows whose gradients wait, with biases that are not all 0."""
    bias = torch.randn(C, generator=tapas.rng.stream(0, "bias"))
    return tapas.LocalTable(C, D, bias=bias, **options)


def check_against(head, losses):
    """Loss and gradients of a fresh `head` with reduction 'none' on the batch above.

    `losses` (score, target, weight) is one of the oracles.
    """
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "query")).requires_grad_()
    target = TARGET.t().contiguous().t()  # strides of any kind are fine
    got = head(query, target, target_weight=WEIGHT)
    pull = torch.rand(B, generator=tapas.rng.stream(0, "pull"))
    (got * pull).sum().backward()
    values = [x.detach().double().numpy() for x in (query, head.table.weight, head.table.bias)]

    def each(query, weight, bias):
        return losses(query @ weight.T + bias, TARGET.tolist(), WEIGHT.tolist())

    np.testing.assert_allclose(got.detach().numpy(), each(*values), rtol=1e-5, atol=1e-5)
    for i, grad in enumerate((query.grad, *dense_gradients(head.table))):

        def total(value, i=i):
            return float(np.dot(each(*values[:i], value, *values[i + 1 :]), pull.double().numpy()))

        want = slope(total, values[i])
        np.testing.assert_allclose(grad.numpy(), want, rtol=1e-4, atol=1e-5)


def nobody(head):
    """A batch without examples, as one rank of many may have."""
    empty = torch.empty(0, D, requires_grad=True)
    return tapas.heads.batch.prepare(
        empty, torch.empty(0, L).long(), None, num_classes=C, dim=D, ignore_index=-100,
        may_be_empty=True,
    )  # fmt: skip
