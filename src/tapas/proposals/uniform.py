"""Uniform proposal: Q(c) = 1 / C."""

import math

import torch
from torch import Tensor

from tapas.candidates import Candidates
from tapas.proposals.floor_and_head import NOTHING, FloorAndHeadProposal, floor_and_head
from tapas.rng import check_generator
from tapas.shapes import check_ids, check_positive

PERMUTED_PER_SAMPLE = 4  # up to this C / k a permutation is faster than draws


class Uniform(FloorAndHeadProposal):
    """Draws every class with the same probability. Stores nothing."""

    def __init__(self, num_classes: int):
        self.num_classes = num_classes = check_positive("num_classes", num_classes)
        self._parts = floor_and_head(
            num_classes,
            NOTHING.long(),
            NOTHING,
            floor_share=1.0,
            floor_log_prob=-math.log(num_classes),
            head_log_prob=NOTHING,
        )

    def sample(self, k: int, *, generator: torch.Generator) -> Candidates:
        """As in `Proposal`; if classes are few, the first `k` of a random permutation.

        The first k distinct draws are any k classes with the same chance: k / C for each.
        """
        check_positive("number of samples", k)
        check_generator(generator)
        if k >= self.num_classes:
            return super().sample(k, generator=generator)
        if self.num_classes <= PERMUTED_PER_SAMPLE * k:
            order = torch.randperm(self.num_classes, generator=generator, device="cpu")
            ids = order[:k].sort().values
        else:
            ids = self._draw_until_distinct(k, generator).ids
        share = math.log(k / self.num_classes)
        return Candidates(ids, torch.full_like(ids, share, dtype=torch.float32))

    def log_prob(self, ids: Tensor) -> Tensor:
        ids = check_ids("ids", ids, self.num_classes)
        return torch.full_like(ids, -math.log(self.num_classes), dtype=torch.float64)

    def __repr__(self) -> str:
        return f"Uniform({self.num_classes})"
