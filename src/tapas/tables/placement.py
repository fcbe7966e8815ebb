"""`Placement`: the shard of each class and its position there, computed from the id.

Classes are ordered, by a keyed random permutation or by id, and shard j of m has the j-th range
of that order. Nothing is stored, shards differ in size by at most one, and rows saved by m shards
can be split again for any other number of shards.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.permutation import Permutation
from tapas.rng import stream
from tapas.shapes import check_ids, check_positive

KINDS = ("random", "contiguous")


class Placement:
    """`num_classes` classes on `num_shards` shards.

    Args:
        kind: "random" spreads frequent classes evenly over shards; "contiguous" keeps ids in
            order, for ids that are already random.
    """

    def __init__(self, num_classes: int, num_shards: int, *, seed: int = 0, kind: str = "random"):
        self.num_classes = num_classes = check_positive("num_classes", num_classes)
        self.num_shards = num_shards = check_positive("num_shards", num_shards)
        if num_shards > num_classes:
            raise UsageError(
                f"cannot spread {num_classes} classes over {num_shards} shards. Use at most "
                f"{num_classes}."
            )
        if kind not in KINDS:
            raise UsageError(f"placement must be {' or '.join(KINDS)}, got {kind!r}.")
        self.seed, self.kind = seed, kind
        self._order = None
        if kind == "random":
            self._order = Permutation(num_classes, stream(seed, "placement"))

    def shard(self, ids: Tensor) -> Tensor:
        """The shard of each id, the shape of `ids`."""
        return self.shard_at(self.permute(ids))

    def shard_at(self, positions: Tensor) -> Tensor:
        """The shard of each position in the order."""
        return positions * self.num_shards // self.num_classes

    def start(self, shard: int) -> int:
        """The first position of `shard`, which ends before the start of the next."""
        return -(-shard * self.num_classes // self.num_shards)

    def size(self, shard: int) -> int:
        return self.start(shard + 1) - self.start(shard)

    def permute(self, ids: Tensor) -> Tensor:
        """The position of each id in the order, 0 .. C-1."""
        if self._order is None:
            return check_ids("ids", ids, self.num_classes)
        return self._order.permute(ids)

    def ids_at(self, positions: Tensor) -> Tensor:
        """The id at each position of the order."""
        if self._order is None:
            return check_ids("positions", positions, self.num_classes)
        return self._order.inverse(positions)

    def ids_of(self, shard: int) -> Tensor:
        """The ids of `shard` in the order of its rows."""
        return self.ids_at(torch.arange(self.start(shard), self.start(shard + 1), device="cpu"))


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows of shard `number`, in its order."""

    placement: Placement
    number: int = 0

    @classmethod
    def all_by_id(cls, num_classes: int) -> Self:
        """Every row, row i being that of class i."""
        return cls(Placement(num_classes, 1, kind="contiguous"))

    @property
    def start(self) -> int:
        """The position of the first row in the order of all classes."""
        return self.placement.start(self.number)

    @property
    def stop(self) -> int:
        """One after the position of the last row."""
        return self.placement.start(self.number + 1)

    @property
    def has_all_rows(self) -> bool:
        """Whether these are all rows of the table."""
        return self.placement.num_shards == 1

    def same_order(self, other: "RowRange") -> bool:
        """Whether both are ranges of the same order of classes."""
        mine, theirs = self.placement, other.placement
        return mine.kind == theirs.kind and (mine.kind == "contiguous" or mine.seed == theirs.seed)
