"""Softmax cross-entropy with the partition sum estimated from a sample.

    log_sum_b = log sum_k exp(query_b . row_k + bias_k - log_q_k)     k kept, not b's own target
    loss_b    = sum_l w_bl * ( log( sum_l' exp(s_bl') + exp(log_sum_b) ) - s_bl )

Own targets count once and exactly; everything else is weighted by the inverse of its
expected count, so that the sum estimates the true partition sum without bias.
"""

import torch
from torch import Tensor
from torch.nn import functional

import tapas.native as native
from tapas.candidates import mute
from tapas.shapes import check_shape


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

    The other arguments and results are those of `kept_log_sum`. A native kernel computes the
    shares again, a block at a time, which costs less than to keep them.
    """
    if share is None:
        return native.gradients(weight, offset, query, ids, own, log_sum=log_sum, scale=grad)
    column = grad[:, None]
    return (
        torch.mm(share, weight).mul_(column),
        torch.mm(share.t(), column * query),
        torch.mv(share.t(), grad),
    )


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
