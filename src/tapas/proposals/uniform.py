"""Every class alike: Q(c) = 1 / C."""

import math

import torch
from torch import Tensor

from tapas.proposals.base import Proposal
from tapas.shapes import check_ids, check_positive


class Uniform(Proposal):
    """Draws every class with the same probability; nothing to store."""

    def __init__(self, num_classes: int):
        self.num_classes = check_positive("num_classes", num_classes)

    def draw(self, k: int, *, generator: torch.Generator) -> Tensor:
        return torch.randint(self.num_classes, (k,), generator=generator)

    def log_prob(self, ids: Tensor) -> Tensor:
        ids = check_ids("ids", ids, self.num_classes)
        return torch.full(ids.shape, -math.log(self.num_classes), dtype=torch.float64)

    def __repr__(self) -> str:
        return f"Uniform({self.num_classes})"
