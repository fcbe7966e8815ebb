"""Copying: the items of the history itself, by how often and how long ago a user had them.

w(y)      = sum over the events of item y of (baskets ago) ** -decay
p_copy(y) = w(y) ** power / sum of the same over all items of the history
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from tapas.mixture.past import Groups, Past, within


@dataclass(frozen=True, slots=True)
class OwnItems:
    """The items of B histories, ready to be weighted."""

    groups: Groups
    log_age: Tensor  # (B, W)
    real: Tensor  # (B, W) False for padding and for items that are left out

    @property
    def items(self) -> Tensor:
        """(B, W) distinct, -1 after the last."""
        return self.groups.items


class CopyPart(nn.Module):
    """Two numbers: `decay` of an event with its age, `power` of what the events sum to."""

    starts: ClassVar = {"decay": 0.6, "log_power": 0.2}  # before they are fitted
    decay: Tensor
    log_power: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, value in self.starts.items():
            self.register_buffer(name, torch.tensor(value))

    def read(self, past: Past, exclude: Tensor | None) -> OwnItems:
        """The items of `past` without those in `exclude` (B, E)."""
        items = past.items
        if exclude is not None:
            items = items.masked_fill(within(items, exclude), -1)
        log_age = past.age.clamp(min=1).to(torch.float64).log()
        return OwnItems(Groups.of(items), log_age, items >= 0)

    def prob(self, own: OwnItems) -> Tensor:
        """(B, W) probabilities of `own.items`; all 0 where there is none."""
        weight = (-self.decay * own.log_age).exp().masked_fill(~own.real, 0.0)
        sums = own.groups.sum(weight)
        listed = own.items >= 0
        score = self.log_power.exp() * sums.masked_fill(~listed, 1.0).log()
        best = score.masked_fill(~listed, -torch.inf).amax(dim=1, keepdim=True)
        share = (score - best.masked_fill(best == -torch.inf, 0.0)).exp().masked_fill(~listed, 0.0)
        return share / share.sum(dim=1, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)
