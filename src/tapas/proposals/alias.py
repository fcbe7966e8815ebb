"""Walker's alias method: O(1) draws from any finite distribution, built in vector operations.

Weights are scaled to mean 1. A light bucket (below 1) is filled up by a heavy class; a heavy
class that becomes light by this is filled up by the next heavy one. The textbook loop does
this one bucket at a time. Let D be the running sum of what light buckets lack and E that of what
heavy classes have in excess: the state of the loop is E - D, so all partners can be found by
binary search.
"""

import torch
from torch import Tensor


class AliasTable:
    """Draws positions 0 .. H-1 in proportion to positive `weights` (H,).

    A draw takes any bucket i with the same chance, and then i with the chance threshold[i], else
    partner[i]. Proposals draw by counter; see floor_and_head.py.
    """

    def __init__(self, weights: Tensor):
        scaled = weights.double() * (weights.shape[0] / weights.double().sum())
        self.threshold = scaled.clamp(max=1.0)
        self.partner = torch.arange(weights.shape[0], device=weights.device)
        light, heavy = (scaled < 1).nonzero()[:, 0], (scaled >= 1).nonzero()[:, 0]
        if not (len(light) and len(heavy)):
            return  # equal weights: every bucket is full, up to rounding
        lacking = torch.cat([scaled.new_zeros(1), (1 - scaled[light]).cumsum(0)])
        spare = (scaled[heavy] - 1).cumsum(0)
        giver = torch.searchsorted(spare, lacking[:-1], right=True).clamp_(max=len(heavy) - 1)
        self.partner[light] = heavy[giver]
        drained = torch.searchsorted(lacking, spare[:-1]).clamp_(max=len(light))
        left = (1 + spare[:-1] - lacking[drained]).clamp_(0, 1)
        self.threshold[heavy[:-1]] = left
        self.partner[heavy[:-1]] = heavy[1:]
        self.threshold[heavy[-1]] = 1.0

    def draw(self, k: int, *, generator: torch.Generator) -> Tensor:
        """`k` independent positions, (k,) int64."""
        u = torch.rand(k, generator=generator, dtype=torch.float64, device="cpu")
        u.mul_(self.threshold.shape[0])
        bucket = u.long().clamp_(max=self.threshold.shape[0] - 1)
        return torch.where(u - bucket < self.threshold[bucket], bucket, self.partner[bucket])
