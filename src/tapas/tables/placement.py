"""Which shard a class lives on: at random, yet computable from the id alone.

A keyed permutation of the classes, then the remainder by the number of shards. Frequent
classes spread evenly, shards differ in size by at most one, and nothing is stored.
"""

from torch import Tensor

from tapas.errors import UsageError
from tapas.permutation import Permutation
from tapas.rng import stream
from tapas.shapes import check_positive


class Placement:
    """`shard(ids)` for `num_classes` classes on `num_shards` shards."""

    def __init__(self, num_classes: int, num_shards: int, *, seed: int = 0):
        self.num_classes = check_positive("num_classes", num_classes)
        self.num_shards = check_positive("num_shards", num_shards)
        if num_shards > num_classes:
            raise UsageError(f"cannot spread {num_classes} classes over {num_shards} shards.")
        self._order = Permutation(num_classes, stream(seed, "placement"))

    def shard(self, ids: Tensor) -> Tensor:
        """The shard of each id, the shape of `ids`."""
        return self.permute(ids) % self.num_shards

    def permute(self, ids: Tensor) -> Tensor:
        """A fixed random permutation of 0 .. C-1, applied to `ids`."""
        return self._order.permute(ids)
