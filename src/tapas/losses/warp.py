"""WARP, the weighted approximate-rank pairwise loss, of a class that violates the margin.

    loss = L(rank) * max(0, 1 - s_y + s_neg)        L(k) = 1 + 1/2 + ... + 1/k

L grows like the logarithm of the rank: moving a target from position 2 to 1 of the ranked list
gains as much as from 1000 to 500, which suits precision at the top.
"""

import torch
from torch import Tensor

from tapas.shapes import check_shape

EULER = 0.5772156649015329  # the limit of L(k) - log k


def harmonic(k: Tensor) -> Tensor:
    """L(k) of integers from 0 on, any shape, as float64; O(1) for each.

    >>> harmonic(torch.tensor([0, 1, 2, 4]))
    tensor([0.0000, 1.0000, 1.5000, 2.0833], dtype=torch.float64)
    """
    return torch.where(k > 0, torch.digamma(k.double() + 1) + EULER, 0.0)


def warp_loss(positive: Tensor, negative: Tensor, rank: Tensor) -> Tensor:
    """The loss of each pair of a target and a class that violates its margin.

    Args:
        positive: (N,) logits of targets.
        negative: (N,) logits of classes that violate the margin: above `positive` - 1.
        rank:     (N,) estimated number of classes that violate it, integers.

    Returns: (N,) loss, not reduced.

    >>> warp_loss(torch.tensor([2.0]), torch.tensor([1.5]), torch.tensor([2]))  # 1.5 * 0.5
    tensor([0.7500])
    """
    check_shape({}, positive=(positive, "N"), negative=(negative, "N"), rank=(rank, "N"))
    return harmonic(rank).to(positive.dtype) * (1 - positive + negative).clamp(min=0)
