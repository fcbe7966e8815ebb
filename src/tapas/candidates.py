"""Classes drawn for a batch, together with how likely each draw was."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tapas.errors import UsageError

COMPARED_AT_ONCE = 1 << 14  # pairs of ids; up to here comparing all beats searching


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
        if self.ids.dtype != torch.int64 or self.log_q.dtype != torch.float32:
            raise UsageError(
                "candidates need ids of torch.int64 and log_q of torch.float32, got "
                f"{self.ids.dtype} and {self.log_q.dtype}. Convert with .long() and .float()."
            )

    @staticmethod
    def every(num_classes: int, device: torch.device | str = "cpu") -> "Candidates":
        """All classes, each for certain."""
        log_q = torch.zeros(num_classes, dtype=torch.float32, device=device)
        return Candidates(torch.arange(num_classes, device=device), log_q)

    def __len__(self) -> int:
        return self.ids.shape[0]

    def to(self, device: torch.device) -> "Candidates":
        if self.ids.device == device:
            return self
        return Candidates(self.ids.to(device), self.log_q.to(device))


def index_of(sorted_ids: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Place of each of `wanted` (any shape) in rising `sorted_ids` (K,), and if it is there."""
    if not sorted_ids.shape[0]:
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    place = torch.searchsorted(sorted_ids, wanted.contiguous())
    place.clamp_(max=sorted_ids.shape[0] - 1)
    return place, sorted_ids[place] == wanted


def mask_hits(logit: Tensor, ids: Tensor, own: Tensor) -> None:
    """-inf into `logit` (B, K) where class `ids` (K,) is one of the row's `own` (B, L)."""
    num_ids, num_own = ids.shape[0], own.shape[1]
    if own.numel() * num_ids <= COMPARED_AT_ONCE:
        mine = own == ids if num_own == 1 else (own[:, :, None] == ids).any(dim=1)
        logit.masked_fill_(mine, -torch.inf)
    elif num_ids:
        place, found = index_of(ids, own)
        # the minimum, as a place may be that of one own class and the nearest to another
        logit.scatter_reduce_(1, place, torch.where(found, -torch.inf, torch.inf), "amin")


def first_occurrences(ids: Tensor) -> Tensor:
    """(B, L) True where an id stands in its row of `ids` (B, L) for the first time."""
    ordered, order = ids.sort(dim=1, stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[:, 1:], ordered[:, :-1], out=first[:, 1:])
    return torch.empty_like(first).scatter_(1, order, first)
