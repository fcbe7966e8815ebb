"""Softmax cross-entropy with the partition sum estimated from a sample.

    log_sum_b = log sum_k exp(query_b . row_k + bias_k - log_q_k)     k kept, not b's own target
    loss_b    = sum_l w_bl * ( log( sum_l' exp(s_bl') + exp(log_sum_b) ) - s_bl )

Own targets count once and exactly; everything else is weighted by the inverse of its
expected count, so that the sum estimates the true partition sum without bias.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

import tapas.native as native
from tapas.candidates import mute
from tapas.shapes import check_shape

HELD_AT_ONCE = 1 << 24  # scores, 64 MB; a larger matrix is computed in blocks of classes, and again


def kept_log_sum(
    query: Tensor, weight: Tensor, offset: Tensor, ids: Tensor, own: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Log of the estimated sum over the kept classes, and each one's share of it.

    Args:
        query:  (B, D)
        weight: (K, D) rows of the kept classes.
        offset: (K,)   bias_k - log_q_k.
        ids:    (K,)   the kept classes, distinct and rising.
        own:    (B, L) classes of the example itself, which are left out of its sum.

    Returns: log_sum (B,), -inf where nothing is left, and share (B, K), its gradient with
    respect to the logits; or None, where `kept_gradients` need not be told.
    """
    if native.readable(weight, query, offset):
        return native.log_sum(weight, offset, query, ids=ids, own=own), None
    if not len(ids):
        return query.new_full((len(query),), -torch.inf), query.new_zeros(len(query), 0)
    if len(query) * len(ids) > HELD_AT_ONCE:
        return _log_sum_by_blocks(query, weight, offset, ids, own), None
    logit = torch.addmm(offset, query, weight.t())
    mute(logit, ids, own)
    # softmax is one fused pass; the largest entry gives the sum back without underflow
    peak = logit.argmax(dim=1, keepdim=True)
    most = logit.gather(1, peak)
    share = torch.softmax(logit, dim=1, out=logit)
    log_sum = most - share.gather(1, peak).log_()
    if own.shape[1] >= ids.shape[0]:  # only then can an example own all that was kept
        empty = most.isneginf()
        log_sum.masked_fill_(empty, -torch.inf)
        share.masked_fill_(empty, 0.0)
    return log_sum[:, 0], share


def kept_gradients(
    query: Tensor,
    weight: Tensor,
    offset: Tensor,
    ids: Tensor,
    own: Tensor,
    *,
    log_sum: Tensor,
    share: Tensor | None,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by query (B, D), weight (K, D) and offset (K,), for a `grad` (B,) of log_sum.

    The other arguments and results are those of `kept_log_sum`. Without `share`, shares are
    computed again, a block at a time: a native kernel does so faster than to read them, and a
    large (B, K) matrix would not fit.
    """
    if share is None:
        if native.readable(weight, query, offset):
            return native.gradients(weight, offset, query, ids, own, log_sum=log_sum, scale=grad)
        return _gradients_by_blocks(query, weight, offset, ids, own, log_sum=log_sum, grad=grad)
    column = grad[:, None]
    return (
        torch.mm(share, weight).mul_(column),
        torch.mm(share.t(), column * query),
        torch.mv(share.t(), grad),
    )


def _blocks(
    query: Tensor, weight: Tensor, offset: Tensor, ids: Tensor, own: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """Places of some of the kept classes, and their logits (B, block), -inf for own classes."""
    size = max(HELD_AT_ONCE // len(query), 1)
    for start in range(0, len(ids), size):
        block = slice(start, start + size)
        logit = torch.addmm(offset[block], query, weight[block].t())
        mute(logit, ids[block], own)
        yield block, logit


def _log_sum_by_blocks(
    query: Tensor, weight: Tensor, offset: Tensor, ids: Tensor, own: Tensor
) -> Tensor:
    log_sum = query.new_full((len(query),), -torch.inf)
    for _, logit in _blocks(query, weight, offset, ids, own):
        log_sum = torch.logaddexp(log_sum, logit.logsumexp(dim=1))
    return log_sum


def _gradients_by_blocks(
    query: Tensor,
    weight: Tensor,
    offset: Tensor,
    ids: Tensor,
    own: Tensor,
    *,
    log_sum: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    column, total = grad[:, None], log_sum[:, None]
    total = total.masked_fill(total.isneginf(), 0.0)  # exp(-inf - 0): nothing left, no share
    pull = column * query
    query_grad = torch.zeros_like(query)
    weight_grad, offset_grad = torch.empty_like(weight), torch.empty_like(offset)
    for block, logit in _blocks(query, weight, offset, ids, own):
        share = logit.sub_(total).exp_()
        query_grad.addmm_(share, weight[block])
        torch.mm(share.t(), pull, out=weight_grad[block])
        torch.mv(share.t(), grad, out=offset_grad[block])
    return query_grad.mul_(column), weight_grad, offset_grad


def sampled_softmax_loss(
    positive: Tensor, log_sum: Tensor, weight: Tensor | None = None, counted: Tensor | None = None
) -> Tensor:
    """Cross-entropy of every example against its own weighted targets.

    Args:
        positive: (B, L) logits of the example's own targets; -inf is padding.
        log_sum:  (B,)   log of the estimated sum over all other classes.
        weight:   (B, L) weight of each target; 1 if left out.
        counted:  (B, L) False for padding and for a target's second mention, which must
            not be counted in the partition sum again; all True if left out.

    Returns: (B,) loss in nats. Reduce it yourself.

    >>> sampled_softmax_loss(torch.zeros(1, 1), torch.tensor([3.0]).log())  # four equal logits
    tensor([1.3863])
    """
    sizes = check_shape({}, positive=(positive, "B L"), log_sum=(log_sum, "B"))
    for name, given in (("weight", weight), ("counted", counted)):
        if given is not None:
            check_shape(sizes, **{name: (given, "B L")})
    cost = target_costs(positive, log_sum, counted)
    if cost.shape[1] == 1:
        own = cost.view(-1)
        return own if weight is None else own * weight[:, 0]
    return (cost if weight is None else cost * weight).sum(dim=1)


def target_costs(positive: Tensor, log_sum: Tensor, counted: Tensor | None = None) -> Tensor:
    """-log p of each target by itself, (B, L) in nats, 0 for padding; see the loss for shapes."""
    if positive.shape[1] == 1 and counted is None:
        # softplus keeps what the difference of two large logarithms would round away
        own = positive.view(-1)
        cost = functional.softplus(log_sum - own)
        if own.numel() and float(own.detach().min()) == -torch.inf:
            cost = cost.masked_fill(own.isneginf(), 0.0)
        return cost.view(-1, 1)
    own = positive if counted is None else positive.masked_fill(~counted, -torch.inf)
    partition = torch.cat([own, log_sum[:, None]], dim=1).logsumexp(dim=1)
    return (partition[:, None] - positive).masked_fill(positive.isneginf(), 0.0)
