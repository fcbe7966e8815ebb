"""The events of histories that counting parts read, and sums over equal items of a history."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Past:
    """The latest events of B histories, oldest first."""

    items: Tensor  # (B, W) int64, -1 after the end of a history
    age: Tensor  # (B, W) how many baskets ago, 1 for the last one; 0 after the end
    lengths: Tensor  # (B,)

    @classmethod
    def of(cls, items: Tensor, lengths: Tensor, age: Tensor | None = None) -> Self:
        """The past of `items` (B, W), of which the first `lengths` (B,) are real.

        Without `age` each event is a basket of its own.

        >>> Past.of(torch.tensor([[7, 9, 7], [4, 0, 0]]), torch.tensor([3, 1])).age
        tensor([[3, 2, 1],
                [1, 0, 0]])
        """
        place = torch.arange(items.shape[1], device=items.device)
        real = place < lengths[:, None]
        if age is None:
            age = (lengths[:, None] - place).clamp(min=0)
        return cls(items.masked_fill(~real, -1), age.masked_fill(~real, 0), lengths)


@dataclass(frozen=True, slots=True)
class Groups:
    """Which entries of a row are of the same class."""

    items: Tensor  # (B, N) the distinct classes of each row, ascending; -1 after the last
    order: Tensor  # (B, N) the entries by class
    slot: Tensor  # (B, N) where the class of each of these is in `items`

    @classmethod
    def of(cls, items: Tensor) -> Self:
        """The groups of `items` (B, N); -1 is padding, in a group of its own.

        >>> Groups.of(torch.tensor([[7, -1, 9, 7]])).items
        tensor([[ 7,  9, -1, -1]])
        """
        last = torch.iinfo(items.dtype).max
        found, order = items.masked_fill(items < 0, last).sort(dim=1, stable=True)
        new = torch.ones_like(found, dtype=torch.bool)
        new[:, 1:] = found[:, 1:] != found[:, :-1]
        slot = new.long().cumsum(1) - 1
        distinct = torch.full_like(found, last).scatter_(1, slot, found)
        return cls(distinct.masked_fill(distinct == last, -1), order, slot)

    def sum(self, values: Tensor) -> Tensor:
        """(B, N) the sums of `values` (B, N) over the entries of each class."""
        sums = values.new_zeros(self.slot.shape)
        return sums.scatter_add(1, self.slot, values.gather(1, self.order))


def within(ids: Tensor, others: Tensor) -> Tensor:
    """True where `ids` (B, N) occur in the same row of `others` (B, M); -1 is padding of both."""
    last = torch.iinfo(others.dtype).max
    ascending = others.masked_fill(others < 0, last).sort(dim=1).values
    return places_of(ascending, ids) >= 0


def places_of(items: Tensor, ids: Tensor) -> Tensor:
    """(B, L) where `ids` (B, L) are in the ascending `items` (B, N), -1 where they are not.

    Negative items are padding, after all others.
    """
    if not items.shape[1]:
        return torch.full_like(ids, -1)
    ascending = items.masked_fill(items < 0, torch.iinfo(items.dtype).max)
    place = torch.searchsorted(ascending, ids.contiguous()).clamp(max=items.shape[1] - 1)
    found = (items.gather(1, place) == ids) & (ids >= 0)
    return place.masked_fill(~found, -1)
