"""Binary cross-entropy for each class separately: is it a target of the example or not?

    target:      -log sigmoid(s)       = softplus(-s)
    no target:   -log(1 - sigmoid(s))  = softplus(s)

    loss_b = sum_l w_bl * ( pull * softplus(-s_bl) + pushed_b )

`pushed_b` is the loss of example b on all classes that are no targets, or on a sample of them.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tapas.candidates import index_of, mask_hits
from tapas.shapes import check_shape
from tapas.torch_modes import first_derivative

SCORES_PER_CHUNK = 1 << 18  # floats of a (B, chunk) block of scores, so that it fits in a cache


def binary_loss(
    positive: Tensor, pushed: Tensor, weight: Tensor | None = None, *, pull: float = 1.0
) -> Tensor:
    """Loss of the targets plus, once for each target, the loss of the other classes.

    Args:
        positive: (B, L) scores of the targets, also finite for padding.
        pushed:   (B,)   loss of the other classes, such as `noise_cost`.
        weight:   (B, L) weight of each target, 0 for padding; 1 if left out.
        pull:     factor of the targets' loss.

    Returns: (B,) loss in nats.

    >>> binary_loss(torch.zeros(1, 1), noise_cost(torch.zeros(1, 3)))  # four coin tosses
    tensor([2.7726])
    """
    sizes = check_shape({}, positive=(positive, "B L"), pushed=(pushed, "B"))
    cost = softplus(-positive).mul(pull) + pushed[:, None]
    if weight is None:
        return cost.sum(dim=1)
    check_shape(sizes, weight=(weight, "B L"))
    return (cost * weight).sum(dim=1)


def noise_cost(negative: Tensor, times: Tensor | None = None) -> Tensor:
    """(B,) sum_k times_k * softplus(n_bk) over the scores `negative` (B, K); -inf adds nothing.

    `times` (K,) is how often each candidate counts, by default once.

    >>> noise_cost(torch.tensor([[0.0, -torch.inf]]))  # one coin toss
    tensor([0.6931])
    """
    sizes = check_shape({}, negative=(negative, "B K"))
    if times is not None:
        check_shape(sizes, times=(times, "K"))
    cost: Tensor = _NoiseCost.apply(negative, times)  # type: ignore[no-untyped-call]
    return cost


def leave_out(score: Tensor, ids: Tensor, target: Tensor) -> Tensor:
    """Set `score` (B, K) of `ids` (K,) to -inf where a class is one of the row's targets.

    `ids` are ascending; `target` (B, L), negative is padding. Changes `score` in place and
    returns it; no gradient flows through what is left out.
    """
    position, found = index_of(ids, target)
    example = found.nonzero()[:, 0]
    return score.index_put_((example, position[found]), score.new_tensor(-torch.inf))


def all_classes_cost(query: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """(B,) sum of softplus(query_b . weight_c + bias_c) over all classes c but the targets of b.

    Args:
        query:  (B, D)
        weight: (C, D) rows of all classes, by id.
        bias:   (C,)
        target: (B, L) classes to leave out; negative is padding.

    No (B, C) matrix is stored: `backward` computes the scores again, one chunk at a time.

    >>> rows, target = torch.zeros(4, 2), torch.tensor([[1]])
    >>> all_classes_cost(torch.ones(1, 2), rows, torch.zeros(4), target)  # three coin tosses
    tensor([2.0794])
    """
    check_shape(
        {}, query=(query, "B D"), weight=(weight, "C D"), bias=(bias, "C"), target=(target, "B L")
    )
    cost: Tensor = _AllClassesCost.apply(query, weight, bias, target)  # type: ignore[no-untyped-call]
    return cost


class _NoiseCost(torch.autograd.Function):
    """Saves one (B, K) matrix for `backward`; autograd would save two and read each twice."""

    @staticmethod
    def forward(ctx: Any, negative: Tensor, times: Tensor | None) -> Tensor:
        ctx.save_for_backward(negative, times)
        cost = softplus(negative)
        return cost.sum(dim=1) if times is None else cost.mv(times)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        negative, times = ctx.saved_tensors
        share = torch.sigmoid(negative).mul_(grad[:, None])
        return (share if times is None else share.mul_(times)), None


class _AllClassesCost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(query, weight, bias, target)
        total = query.new_zeros(len(query))
        for _, _, score in _scores(query, weight, bias, target):
            total += softplus(score).sum(dim=1)
        return total

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, weight, bias, target = ctx.saved_tensors
        query_grad = torch.zeros_like(query)
        weight_grad, bias_grad = torch.empty_like(weight), torch.empty_like(bias)
        with torch.autocast(query.device.type, enabled=False):
            for start, stop, score in _scores(query, weight, bias, target):
                share = score.sigmoid_().mul_(grad[:, None])
                query_grad.addmm_(share, weight[start:stop])
                torch.mm(share.t(), query, out=weight_grad[start:stop])
                torch.sum(share, dim=0, out=bias_grad[start:stop])
        return query_grad, weight_grad, bias_grad, None


def _scores(
    query: Tensor, weight: Tensor, bias: Tensor, target: Tensor
) -> Iterator[tuple[int, int, Tensor]]:
    """Chunks of classes: the first class, one past the last, and their scores (B, chunk)."""
    size = max(1, SCORES_PER_CHUNK // max(1, len(query)))
    for start in range(0, len(weight), size):
        stop = min(start + size, len(weight))
        score = torch.addmm(bias[start:stop], query, weight[start:stop].t())
        mask_hits(score, torch.arange(start, stop, device=target.device), target)
        yield start, stop, score
