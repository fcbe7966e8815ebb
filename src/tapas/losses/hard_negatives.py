"""Logits of targets, and log sums over candidates that differ between examples.

For heads whose examples do not share one sample; the two are the inputs of
`sampled_softmax_loss`.
"""

import torch
from torch import Tensor

from tapas.shapes import check_shape


def positive_logits(query: Tensor, target: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, L) logits of the targets, -inf for padding.

    Args:
        query:  (B, D)
        target: (B, L) class ids, negative is padding.
        weight: (N, D) rows of the targets that are not padding, in row-major order of `target`.
        bias:   (N,)

    >>> one, pad = torch.ones(1, 2), torch.tensor([[7, -1]])
    >>> positive_logits(one, pad, torch.tensor([[3.0, 4.0]]), torch.zeros(1))
    tensor([[7., -inf]])
    """
    check_shape({}, query=(query, "B D"), weight=(weight, "N D"), bias=(bias, "N"))
    example = (target >= 0).nonzero()[:, 0]
    logit = (query.index_select(0, example) * weight).sum(dim=1) + bias
    empty = logit.new_full(target.shape, -torch.inf)
    return empty.masked_scatter(target >= 0, logit)


def log_sum_without(logit: Tensor, left_out: Tensor) -> Tensor:
    """logsumexp of `logit` over the last dimension, without the entries marked in `left_out`.

    Both have the same shape, `left_out` is bool. -inf with a gradient of 0 if all are left out.

    >>> log_sum_without(torch.zeros(4), torch.tensor([False, False, False, True]))  # log 3
    tensor(1.0986)
    """
    return logit.masked_fill(left_out, -torch.inf).logsumexp(dim=-1)
