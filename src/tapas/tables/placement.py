"""Which shard a class lives on: at random, yet computable from the id alone.

A keyed permutation of 0 .. C-1 (a Feistel network, walked until it lands inside), then
the remainder by the number of shards. Frequent classes spread evenly, shards differ in
size by at most one, and nothing is stored.
"""

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.rng import stream
from tapas.shapes import check_ids, check_positive

ROUNDS = 4
PRIME = 2**31 - 1


class Placement:
    """`shard(ids)` for `num_classes` classes on `num_shards` shards."""

    def __init__(self, num_classes: int, num_shards: int, *, seed: int = 0):
        self.num_classes = check_positive("num_classes", num_classes)
        self.num_shards = check_positive("num_shards", num_shards)
        if num_shards > num_classes:
            raise UsageError(f"cannot spread {num_classes} classes over {num_shards} shards.")
        self._half = max(1, ((num_classes - 1).bit_length() + 1) // 2)
        generator = stream(seed, "placement")
        self._keys = torch.randint(
            1, PRIME, (ROUNDS, 2), generator=generator, device="cpu"
        ).tolist()

    def shard(self, ids: Tensor) -> Tensor:
        """The shard of each id, the shape of `ids`."""
        return self.permute(ids) % self.num_shards

    def permute(self, ids: Tensor) -> Tensor:
        """A fixed random permutation of 0 .. C-1, applied to `ids`."""
        out = self._encrypt(check_ids("ids", ids, self.num_classes))
        while bool((outside := out >= self.num_classes).any()):
            out = torch.where(outside, self._encrypt(out), out)
        return out

    def _encrypt(self, ids: Tensor) -> Tensor:
        """A permutation of 0 .. 4^half - 1, the least such square that holds every id."""
        mask = (1 << self._half) - 1
        left, right = ids >> self._half, ids & mask
        for factor, shift in self._keys:
            # halves and keys stay below 2^31, so that no product leaves int64
            mixed = (right * factor + shift) % PRIME
            mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D % PRIME
            left, right = right, left ^ ((mixed ^ (mixed >> 13)) & mask)
        return (left << self._half) | right
