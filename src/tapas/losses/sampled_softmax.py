"""Softmax cross-entropy with the partition sum estimated from a sample.

    log_sum_b = log sum_k exp(query_b . row_k + bias_k - log_q_k)     k kept, no target of b
    loss_b    = sum_l w_bl * ( log( sum_l' exp(s_bl') + exp(log_sum_b) ) - s_bl )

Targets of the example count once and exactly; every other class is weighted by the inverse of
its expected count, which makes the sum an unbiased estimate of the partition sum. Its logarithm,
and hence the loss, is too small on average: see docs/accuracy.md.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

import tapas.native as native
from tapas.candidates import mask_hits
from tapas.shapes import check_shape

HELD_AT_ONCE = 1 << 24  # scores, 64 MB; a larger matrix is computed in blocks, again in backward


class Shares(NamedTuple):
    """The share of each kept class in its example's sum: the gradient of log_sum by the logits.

    Exactly one field is set. Without `matrix`, shares are computed again in `backward`, one block
    at a time: a native kernel computes them faster than it could read them, and a large (B, K)
    matrix would not fit in memory. They are computed from `sums` and not from log_sum, which is
    rounded to float32: at log_sum = 1000 that would scale all shares by up to 3e-5.
    """

    matrix: Tensor | None  # (B, K), 0 for an example with nothing to sum
    sums: Tensor | None  # (2, B) reference and inverse: share = exp(logit - reference) * inverse


def kept_log_sum(
    query: Tensor, weight: Tensor, offset: Tensor, ids: Tensor, target: Tensor
) -> tuple[Tensor, Shares]:
    """Log of the estimated sum over the kept classes, and the share of each class in it.

    Args:
        query:  (B, D)
        weight: (K, D) rows of the kept classes.
        offset: (K,)   bias_k - log_q_k.
        ids:    (K,)   the kept classes, distinct and ascending.
        target: (B, L) targets, which are left out of their example's sum; negative is padding.

    Returns: log_sum (B,), -inf if nothing is left to sum, and the shares for `kept_gradients`.
    """
    if native.readable(weight, query, offset):
        log_sum, sums = native.log_sum(weight, offset, query, ids=ids, target=target)
        return log_sum, Shares(None, sums)
    if not len(ids):
        nothing = query.new_full((len(query),), -torch.inf)
        return nothing, Shares(query.new_zeros(len(query), 0), None)
    if len(query) * len(ids) > HELD_AT_ONCE:
        blocks = _blocks(query, weight, offset, ids, target)
        log_sum, sums = sums_by_blocks(query, (logit for _, logit in blocks))
        return log_sum, Shares(None, sums)
    logit = torch.addmm(offset, query, weight.t())
    mask_hits(logit, ids, target)
    # softmax is one fused pass; the share of the largest logit gives log_sum without underflow
    peak = logit.argmax(dim=1, keepdim=True)
    most = logit.gather(1, peak)
    share = torch.softmax(logit, dim=1, out=logit)
    log_sum = most - share.gather(1, peak).log_()
    empty = most.isneginf()  # all kept classes may be targets, and a bias may be -inf
    if query.device.type != "cpu" or bool(empty.any()):  # no test on a GPU: it would synchronise
        log_sum.masked_fill_(empty, -torch.inf)
        share.masked_fill_(empty, 0.0)
    return log_sum[:, 0], Shares(share, None)


def kept_gradients(
    query: Tensor,
    weight: Tensor,
    offset: Tensor,
    ids: Tensor,
    target: Tensor,
    *,
    shares: Shares,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query (B, D), weight (K, D) and offset (K,), given `grad` (B,) of log_sum.

    The other arguments are those of `kept_log_sum`, and `shares` is what it returned.
    """
    sums = shares.sums
    if sums is not None:
        if native.readable(weight, query, offset):
            return native.gradients(weight, offset, query, ids, target, sums=sums, scale=grad)
        return _gradients_by_blocks(query, weight, offset, ids, target, sums=sums, grad=grad)
    share, column = cast(Tensor, shares.matrix), grad[:, None]
    return (
        torch.mm(share, weight).mul_(column),
        torch.mm(share.t(), column * query),
        torch.mv(share.t(), grad),
    )


def _blocks(
    query: Tensor, weight: Tensor, offset: Tensor, ids: Tensor, target: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of the kept classes: where they are, and logits (B, block), -inf for targets."""
    size = max(HELD_AT_ONCE // len(query), 1)
    for start in range(0, len(ids), size):
        block = slice(start, start + size)
        logit = torch.addmm(offset[block], query, weight[block].t())
        mask_hits(logit, ids[block], target)
        yield block, logit


def sums_by_blocks(query: Tensor, blocks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """log_sum (B,) and `sums` (2, B), as in `Shares`, from blocks of logits, (B, any number).

    Overwrites the blocks. `query` (B, D) gives only the length, dtype and device.
    """
    peak = query.new_full((len(query),), -torch.inf)
    reference = total = query.new_zeros(len(query))
    for logit in blocks:
        before, peak = peak, torch.maximum(peak, logit.amax(dim=1))
        reference = peak.masked_fill(peak.isneginf(), 0.0)  # exp(-inf - -inf) would be NaN
        more = logit.sub_(reference[:, None]).exp_().sum(dim=1)
        total = total * (before - reference).exp() + more
    inverse = total.reciprocal().masked_fill(total == 0, 0.0)
    return reference + total.log(), torch.stack([reference, inverse])


def _gradients_by_blocks(
    query: Tensor,
    weight: Tensor,
    offset: Tensor,
    ids: Tensor,
    target: Tensor,
    *,
    sums: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    reference, inverse = sums
    scale = grad * inverse
    pull = scale[:, None] * query
    query_grad = torch.zeros_like(query)
    weight_grad, offset_grad = torch.empty_like(weight), torch.empty_like(offset)
    for block, logit in _blocks(query, weight, offset, ids, target):
        mass = logit.sub_(reference[:, None]).exp_()
        query_grad.addmm_(mass, weight[block])
        torch.mm(mass.t(), pull, out=weight_grad[block])
        torch.mv(mass.t(), scale, out=offset_grad[block])
    return query_grad.mul_(scale[:, None]), weight_grad, offset_grad


def sampled_softmax_loss(
    positive: Tensor, log_sum: Tensor, weight: Tensor | None = None, counted: Tensor | None = None
) -> Tensor:
    """Softmax cross-entropy of every example with its weighted targets.

    Args:
        positive: (B, L) logits of the targets; -inf is padding.
        log_sum:  (B,)   log of the estimated sum over all other classes.
        weight:   (B, L) weight of each target; 1 if left out.
        counted:  (B, L) False for padding and for a target that is listed again, which counts
            in the partition sum only once; all True if left out.

    Returns: (B,) loss in nats, not reduced.

    >>> sampled_softmax_loss(torch.zeros(1, 1), torch.tensor([3.0]).log())  # four equal logits
    tensor([1.3863])
    """
    sizes = check_shape({}, positive=(positive, "B L"), log_sum=(log_sum, "B"))
    for name, given in (("weight", weight), ("counted", counted)):
        if given is not None:
            check_shape(sizes, **{name: (given, "B L")})
    cost = target_costs(positive, log_sum, counted)
    if cost.shape[1] == 1:
        single = cost.view(-1)
        return single if weight is None else single * weight[:, 0]
    return (cost if weight is None else cost * weight).sum(dim=1)


def target_costs(
    positive: Tensor,
    log_sum: Tensor,
    counted: Tensor | None = None,
    padding: Tensor | None = None,
) -> Tensor:
    """(B, L) -log p of each target in nats, 0 for padding; arguments as in the loss above.

    With `padding` (B, L), another target whose logit is -inf costs inf.
    """
    padding = positive.isneginf() if padding is None else padding
    if positive.shape[1] == 1 and counted is None:
        # softplus keeps digits that the difference of two large logarithms would lose
        cost = functional.softplus(log_sum[:, None] - positive)
    else:
        once = positive if counted is None else positive.masked_fill(~counted, -torch.inf)
        partition = torch.cat([once, log_sum[:, None]], dim=1).logsumexp(dim=1)
        cost = partition[:, None] - positive
    return cost.masked_fill(padding, 0.0)
