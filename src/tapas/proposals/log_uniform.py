"""Log-uniform (Zipf-like) proposal over classes sorted by falling frequency.

Q(c) = (log(c + 2) - log(c + 1)) / log(C + 1)        c = 0 .. C-1
"""

import math

import torch
from torch import Tensor

from tapas.proposals.base import Proposal
from tapas.shapes import check_ids, check_positive


class LogUniform(Proposal):
    """Draws class 0 most often and class C-1 least. Stores nothing.

    Use it only if ids are sorted by frequency, 0 being the most frequent class; for other ids,
    wrap it in `tapas.proposals.ByRank`.
    """

    def __init__(self, num_classes: int):
        self.num_classes = check_positive("num_classes", num_classes)

    def draw(self, k: int, *, generator: torch.Generator) -> Tensor:
        u = torch.rand(k, generator=generator, dtype=torch.float64, device="cpu")
        ids = torch.expm1(u * math.log1p(self.num_classes)).long()
        return ids.clamp_(max=self.num_classes - 1)  # expm1 can round up to exactly C

    def log_prob(self, ids: Tensor) -> Tensor:
        position = check_ids("ids", ids, self.num_classes).double()
        return torch.log1p(1 / (position + 1)).log() - math.log(math.log1p(self.num_classes))

    def __repr__(self) -> str:
        return f"LogUniform({self.num_classes})"
