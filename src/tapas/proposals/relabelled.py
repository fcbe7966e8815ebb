"""A proposal over other names: class `names[i]` is drawn as `base` draws i.

Q(names[i]) = base(i)
"""

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.proposals.base import Proposal
from tapas.shapes import check_ids


class Relabelled(Proposal):
    """`base` for ids that are no ranks: names (C,) lists every class once.

    `Relabelled(LogUniform(C), counts.argsort(descending=True))` draws frequent classes most
    often, whatever their ids. Holds two arrays of C ids.
    """

    def __init__(self, base: Proposal, names: Tensor):
        self.num_classes, self.base = base.num_classes, base
        self.names = check_ids("names", torch.as_tensor(names), self.num_classes).cpu()
        distinct = len(torch.unique(self.names))
        if self.names.shape != (self.num_classes,) or distinct < self.num_classes:
            raise UsageError(
                f"names must list each of the {self.num_classes} classes once, got shape "
                f"{tuple(self.names.shape)} with {distinct} distinct ids."
            )
        self.place = torch.empty_like(self.names)
        self.place[self.names] = torch.arange(self.num_classes, device="cpu")

    def draw(self, k: int, *, generator: torch.Generator) -> Tensor:
        return self.names[self.base.draw(k, generator=generator)]

    def log_prob(self, ids: Tensor) -> Tensor:
        return self.base.log_prob(self.place[check_ids("ids", ids, self.num_classes)])

    def __repr__(self) -> str:
        return f"Relabelled({self.base!r})"
