"""How much of the best n the best n/m of each shard should hold, from counting alone.

Whatever the model and the pool, a random placement puts X_j of the best n into shard j, a
hypergeometric number, and the shard keeps min(X_j, k_j) of them, k_j = n/m up to rounding:

    overlap = sum_j E[min(X_j, k_j)] / n   ≈   1 - sqrt((m - 1) / (2 pi n))     C >> n >> m
"""

from collections import Counter

import torch
from torch import Tensor

from tapas.shapes import check_positive
from tapas.tables.placement import Placement


def expected_overlap(num_classes: int, num_samples: int, num_shards: int) -> float:
    """Expected part of the best n that m shards keep together, exactly.

    >>> round(expected_overlap(2, 1, 1), 3)
    1.0
    >>> round(expected_overlap(4, 2, 2), 3)  # both in one shard with probability 1/3
    0.833
    """
    n = check_positive("num_samples", num_samples)
    placement = Placement(num_classes, num_shards)
    share, extra = divmod(n, num_shards)
    alike = Counter((placement.size(j), share + (j < extra)) for j in range(num_shards))
    total = 0.0
    for (size, keep), count in alike.items():
        hits = torch.arange(min(n, size) + 1, dtype=torch.float64)
        chance = _hypergeometric(hits, n, size, num_classes)
        total += count * float((chance * hits.clamp(max=keep)).sum())
    return total / n


def _hypergeometric(hits: Tensor, num_best: int, size: int, num_classes: int) -> Tensor:
    """P(so many of `num_best` of C classes are in a shard of `size`), the shape of `hits`."""
    possible = num_best - hits <= num_classes - size
    inside = torch.where(possible, hits, hits.new_tensor(float(min(num_best, size))))
    log_chance = (
        _log_choose(hits.new_tensor(float(size)), inside)
        + _log_choose(hits.new_tensor(float(num_classes - size)), num_best - inside)
        - _log_choose(hits.new_tensor(float(num_classes)), hits.new_tensor(float(num_best)))
    )
    return torch.where(possible, log_chance.exp(), 0.0)


def _log_choose(whole: Tensor, part: Tensor) -> Tensor:
    return (whole + 1).lgamma() - (part + 1).lgamma() - (whole - part + 1).lgamma()
