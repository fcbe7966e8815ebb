"""A proposal over frequency ranks, for classes whose ids are in any order.

Q(order[i]) = base(i)
"""

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.proposals.base import Proposal
from tapas.shapes import check_ids


class ByRank(Proposal):
    """Draws class `order[i]` with the probability that `base` gives to i.

    `ByRank(LogUniform(C), counts.argsort(descending=True))` draws frequent classes most often,
    whatever their ids are. Stores two arrays of C ids.

    Args:
        base: a proposal for which 0 is the most frequent class.
        order: (C,) all class ids, the most frequent one first.
    """

    def __init__(self, base: Proposal, order: Tensor):
        self.num_classes, self.base = base.num_classes, base
        self.order = check_ids("order", torch.as_tensor(order), self.num_classes).cpu()
        distinct = len(torch.unique(self.order))
        if self.order.shape != (self.num_classes,) or distinct < self.num_classes:
            raise UsageError(
                f"order must list each of the {self.num_classes} classes once, got shape "
                f"{tuple(self.order.shape)} with {distinct} distinct ids."
            )
        self.position = torch.empty_like(self.order)  # of each class in `order`
        self.position[self.order] = torch.arange(self.num_classes, device="cpu")

    def draw(self, k: int, *, generator: torch.Generator) -> Tensor:
        return self.order[self.base.draw(k, generator=generator)]

    def log_prob(self, ids: Tensor) -> Tensor:
        return self.base.log_prob(self.position[check_ids("ids", ids, self.num_classes)])

    def __repr__(self) -> str:
        return f"ByRank({self.base!r})"
