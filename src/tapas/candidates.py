"""Candidate classes drawn for a batch, with the log of their expected counts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tapas.errors import UsageError

COMPARED_AT_ONCE = 1 << 14  # up to this many pairs of ids, comparing all is faster than searching


@dataclass(frozen=True, slots=True)
class Candidates:
    """Sorted distinct class ids and the log of the expected count of each.

    The two are kept together because a sampled loss without the `log_q` correction is biased.
    """

    ids: Tensor  # (K,) int64, distinct, ascending
    log_q: Tensor  # (K,) float32; log expected count; 0 for a class that is always included
    below: int | None = None  # ids are known to be distinct, ascending and below it

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
        """All classes, with log_q = 0."""
        log_q = torch.zeros(num_classes, dtype=torch.float32, device=device)
        return Candidates(torch.arange(num_classes, device=device), log_q)

    def __len__(self) -> int:
        return self.ids.shape[0]

    def to(self, device: torch.device) -> "Candidates":
        if self.ids.device == device:
            return self
        return Candidates(self.ids.to(device), self.log_q.to(device), self.below)


def index_of(sorted_ids: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Look up `wanted` (any shape) in ascending `sorted_ids` (K,).

    Returns the index of each id and whether it was found, both in the shape of `wanted`. The
    index of an id that was not found is valid but meaningless.
    """
    if not sorted_ids.shape[0]:
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    index = torch.searchsorted(sorted_ids, wanted.contiguous())
    index.clamp_(max=sorted_ids.shape[0] - 1)
    return index, sorted_ids[index] == wanted


def mask_hits(logit: Tensor, ids: Tensor, target: Tensor) -> None:
    """Mask accidental hits, in place.

    Sets `logit` (B, K) to -inf wherever candidate `ids` (K,) is a `target` (B, L) of that row.
    """
    num_ids, num_targets = ids.shape[0], target.shape[1]
    if target.numel() * num_ids <= COMPARED_AT_ONCE:
        hit = target == ids if num_targets == 1 else (target[:, :, None] == ids).any(dim=1)
        logit.masked_fill_(hit, -torch.inf)
    elif num_ids:
        index, found = index_of(ids, target)
        # amin: one index can belong to a target that was found and to another that was not
        logit.scatter_reduce_(1, index, torch.where(found, -torch.inf, torch.inf), "amin")


def first_occurrences(ids: Tensor) -> Tensor:
    """(B, L) bool: True where an id occurs for the first time in its row of `ids` (B, L)."""
    ordered, order = ids.sort(dim=1, stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[:, 1:], ordered[:, :-1], out=first[:, 1:])
    return torch.empty_like(first).scatter_(1, order, first)
