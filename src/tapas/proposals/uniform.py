"""Uniform proposal: Q(c) = 1 / C."""

import math

import torch
from torch import Tensor

from tapas.candidates import Candidates
from tapas.proposals.base import Proposal
from tapas.rng import check_generator
from tapas.shapes import check_ids, check_positive

PERMUTED_PER_SAMPLE = 32  # up to this C / k a permutation is faster than sorting draws


class Uniform(Proposal):
    """Draws every class with the same probability. Stores nothing."""

    def __init__(self, num_classes: int):
        self.num_classes = check_positive("num_classes", num_classes)

    def draw(self, k: int, *, generator: torch.Generator) -> Tensor:
        return torch.randint(self.num_classes, (k,), generator=generator, device="cpu")

    def sample(self, k: int, *, generator: torch.Generator) -> Candidates:
        """As in `Proposal`; if classes are few, the first `k` of a random permutation."""
        check_positive("number of samples", k)
        if not k < self.num_classes <= PERMUTED_PER_SAMPLE * k:
            return super().sample(k, generator=generator)
        check_generator(generator)
        ids = torch.randperm(self.num_classes, generator=generator, device="cpu")[:k].sort().values
        return Candidates(
            ids, torch.full_like(ids, math.log(k / self.num_classes), dtype=torch.float32)
        )

    def log_prob(self, ids: Tensor) -> Tensor:
        ids = check_ids("ids", ids, self.num_classes)
        return torch.full_like(ids, -math.log(self.num_classes), dtype=torch.float64)

    def __repr__(self) -> str:
        return f"Uniform({self.num_classes})"
