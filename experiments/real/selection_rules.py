"""Between the paper's rule and priority: second-pass rules for experiments only."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tapas.selection import Priority, Selection, SelectionInput
from tapas.selection.base import largest
from tapas.selection.priority import mean_share
from tapas.selection.top import batch_score


@dataclass(frozen=True, kw_only=True, slots=True)
class TopWithFloor(Selection):
    """The paper's rule for part of the places; the rest is drawn evenly from the pool.

    Drawn classes represent the pool without the top ones: each is weighted by the number of
    such classes for each drawn one.
    """

    share: float = 0.5  # of the places that are drawn

    def select(self, given: SelectionInput, keep: int) -> tuple[Tensor, Tensor]:
        num_top = max(1, keep - round(self.share * keep))
        top, _ = largest(batch_score(given), num_top)
        order = given.noise.clone()
        order[top] = 2.0  # above all noise, so that the top ones come first
        kept, _ = largest(order, keep)
        weight = torch.full((len(given),), (len(given) - num_top) / max(1, keep - num_top))
        weight = weight.to(order.device)
        weight[top] = 1.0
        return kept, weight[kept].log()


@dataclass(frozen=True, kw_only=True, slots=True)
class TopPerQuery(Selection):
    """Every query has one vote: keep the highest mean share of the pool's softmax."""

    random: ClassVar[bool] = False

    def select(self, given: SelectionInput, keep: int) -> tuple[Tensor, Tensor]:
        share = mean_share(given)
        kept, _ = largest(share, keep)
        return kept, share[kept] * 0  # NaN where a row has diverged, so that it shows in the loss


@dataclass(frozen=True, kw_only=True, slots=True)
class TemperedPriority(Selection):
    """Priority whose weights are raised to a power: 1 is unbiased, 0 keeps without correcting.

    Large weights are what the variance comes from, and what pushes rare classes down.
    """

    power: float = 0.5
    score_queries: int | None = 64

    def select(self, given: SelectionInput, keep: int) -> tuple[Tensor, Tensor]:
        kept, log_weight = Priority(score_queries=self.score_queries).select(given, keep)
        return kept, self.power * log_weight


VARIANTS: dict[str, Selection] = {
    "top with a floor": TopWithFloor(),
    "top per query": TopPerQuery(),
    "priority, half corrected": TemperedPriority(),
    "priority, not corrected": TemperedPriority(power=0.0),
}
