"""Following: what came after the latest items of the history in training, as counted.

    p_follow(y) = sum over the latest items x_1 (the last one), x_2, ... of v_k c(x_k, y) / c(x_k)
    v           = softmax over k of  -decay (a_k - 1) + trust log(1 + c(x_k))

c(x, y) are the counts of `Transitions`, c(x) is their sum over y, and a_k is how many baskets ago
x_k was: 1 for all items of the last basket, whose order says nothing.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from tapas.mixture.past import Past, within
from tapas.mixture.transitions import Transitions

RECENT = 10  # latest events of a history whose followers are looked up


@dataclass(frozen=True, slots=True)
class Followers:
    """What followed each of the latest items of B histories."""

    items: Tensor  # (B, R, F) -1 is padding
    count: Tensor  # (B, R, F) 0 for padding
    total: Tensor  # (B, R) sums of `count`
    age: Tensor  # (B, R) how many baskets ago the item was


class FollowPart(nn.Module):
    """Two numbers: `decay` from one basket to the one before it, `trust` in items with many counts.

    `transitions` are no part of the state: they are counted again when a model is opened.
    """

    starts: ClassVar = {"decay": 0.5, "trust": 0.4}  # before they are fitted
    decay: Tensor
    trust: Tensor

    def __init__(self, transitions: Transitions):
        super().__init__()
        self.transitions = transitions
        for name, value in self.starts.items():
            self.register_buffer(name, torch.tensor(value))

    def read(self, past: Past, exclude: Tensor | None) -> Followers:
        """The followers of the latest items of `past` without those in `exclude` (B, E)."""
        back = past.lengths[:, None] - 1 - torch.arange(RECENT, device=past.lengths.device)
        recent = past.items.gather(1, back.clamp(min=0)).masked_fill(back < 0, -1)
        items, count = self.transitions.rows(recent)
        if exclude is not None:
            left_out = within(items.flatten(1), exclude).view_as(items)
            items, count = items.masked_fill(left_out, -1), count.masked_fill(left_out, 0.0)
        age = past.age.gather(1, back.clamp(min=0)).masked_fill(back < 0, 1)
        return Followers(items, count, count.sum(dim=2), age)

    def weight(self, found: Followers) -> Tensor:
        """(B, R) v / c of the latest items; 0 for those that nothing followed."""
        total = found.total
        score = -self.decay * (found.age - 1) + self.trust * torch.log1p(total)
        score = score.masked_fill(total <= 0, -torch.inf)
        best = score.amax(dim=1, keepdim=True)
        share = (score - best.masked_fill(best == -torch.inf, 0.0)).exp()
        share = share / share.sum(dim=1, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)
        return share / total.masked_fill(total <= 0, 1.0)

    def prob(self, found: Followers) -> Tensor:
        """(B, R, F) contributions to the probabilities of `found.items`."""
        return self.weight(found)[:, :, None] * found.count
