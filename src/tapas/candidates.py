"""Classes drawn for a batch, together with how likely each draw was."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tapas.errors import UsageError


@dataclass(frozen=True, slots=True)
class Candidates:
    """Distinct class ids, rising, and the log of each one's expected count.

    The two travel together because a sampled loss without its `log_q` is a
    different, biased loss.
    """

    ids: Tensor  # (K,) int64, distinct, rising
    log_q: Tensor  # (K,) float32; log of the expected count of that draw, 0 for a certain one

    def __post_init__(self) -> None:
        if self.ids.dim() != 1 or self.ids.shape != self.log_q.shape:
            raise UsageError(
                f"candidates need ids and log_q of one shape (K,), got {tuple(self.ids.shape)} "
                f"and {tuple(self.log_q.shape)}."
            )

    def __len__(self) -> int:
        return self.ids.shape[0]

    def to(self, device: torch.device) -> "Candidates":
        if self.ids.device == device:
            return self
        return Candidates(self.ids.to(device), self.log_q.to(device))


def find(sorted_ids: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Place of each of `wanted` (any shape) in rising `sorted_ids` (K,), and if it is there."""
    if not sorted_ids.shape[0]:
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    place = torch.searchsorted(sorted_ids, wanted.contiguous())
    place.clamp_(max=sorted_ids.shape[0] - 1)
    return place, sorted_ids[place] == wanted


def first_mentions(ids: Tensor) -> Tensor:
    """(B, L) True where an id stands in its row of `ids` (B, L) for the first time."""
    ordered, order = ids.sort(dim=1, stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[:, 1:], ordered[:, :-1], out=first[:, 1:])
    return torch.empty_like(first).scatter_(1, order, first)
