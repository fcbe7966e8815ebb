"""A weighted mixture of proposals: Q = sum_i w_i Q_i."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.proposals.base import Proposal


class Mixture(Proposal):
    """Each draw is from one of `parts`, chosen with probability proportional to `weights`.

    Args:
        parts: proposals over the same classes.
        weights: one finite number above 0 for each; equal if left out.
    """

    def __init__(self, parts: Sequence[Proposal], weights: Sequence[float] | None = None):
        self.parts = tuple(parts)
        if not self.parts:
            raise UsageError("a mixture needs at least one proposal, got none.")
        for part in self.parts:
            if not isinstance(part, Proposal):
                raise UsageError(f"the parts of a mixture must be proposals, got {part!r}.")
        sizes = [part.num_classes for part in self.parts]
        if len(set(sizes)) > 1:
            raise UsageError(f"the parts of a mixture must share num_classes, got {sizes}.")
        self.num_classes = sizes[0]
        self.wants_context = any(part.wants_context for part in self.parts)
        wanted = list(weights) if weights is not None else [1.0] * len(self.parts)
        if len(wanted) != len(self.parts) or not all(0 < w < float("inf") for w in wanted):
            raise UsageError(
                f"a mixture of {len(self.parts)} proposals needs as many weights, each finite and "
                f"above 0, got {wanted}."
            )
        self.weights = torch.tensor(wanted, dtype=torch.float64, device="cpu")
        self.weights /= self.weights.sum()

    def conditioned_on(self, context: Tensor | None) -> "Mixture":
        return Mixture([part.conditioned_on(context) for part in self.parts], self.weights.tolist())

    def draw(self, k: int, *, generator: torch.Generator) -> Tensor:
        u = torch.rand(k, generator=generator, dtype=torch.float64, device="cpu")
        part = torch.searchsorted(self.weights.cumsum(0), u, right=True)
        part.clamp_(max=len(self.parts) - 1)
        ids = torch.empty_like(part)
        for i, proposal in enumerate(self.parts):
            mine = (part == i).nonzero()[:, 0]
            if len(mine):
                ids[mine] = proposal.draw(len(mine), generator=generator)
        return ids

    def log_prob(self, ids: Tensor) -> Tensor:
        each = torch.stack([part.log_prob(ids) for part in self.parts], dim=-1)
        return torch.logsumexp(each + self.weights.log(), dim=-1)

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{w:.3g} {p!r}" for w, p in zip(self.weights.tolist(), self.parts, strict=True)
        )
        return f"Mixture({parts})"
