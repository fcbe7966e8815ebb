"""A random order of 0 .. n-1 that is computed, not stored: a keyed Feistel network.

Numbers that land outside 0 .. n-1 are sent through it again until they land inside, which
keeps it one to one.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tapas.shapes import check_ids, check_positive

ROUNDS = 4
PRIME = 2**31 - 1


class Permutation:
    """Position i of the order is `permute(i)`; O(1) memory, the same for equal generators."""

    def __init__(self, size: int, generator: torch.Generator):
        self.size = check_positive("size", size)
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._keys = torch.randint(
            1, PRIME, (ROUNDS, 2), generator=generator, device="cpu"
        ).tolist()

    def permute(self, ids: Tensor) -> Tensor:
        """Where each of `ids` goes, the shape of `ids`."""
        return self._walk(self._encrypt, check_ids("ids", ids, self.size))

    def inverse(self, places: Tensor) -> Tensor:
        """Which id went to each of `places`: permute(inverse(p)) is p."""
        return self._walk(self._decrypt, check_ids("places", places, self.size))

    def _walk(self, step: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
        """`step` until every number is inside; numbers outside are way stations."""
        out = step(ids)
        while bool((outside := out >= self.size).any()):
            out = torch.where(outside, step(out), out)
        return out

    def _encrypt(self, ids: Tensor) -> Tensor:
        """A permutation of 0 .. 4^half - 1, the least such square that holds every id."""
        left, right = ids >> self._half, ids & self._mask
        for key in self._keys:
            left, right = right, left ^ self._mix(right, *key)
        return (left << self._half) | right

    def _decrypt(self, ids: Tensor) -> Tensor:
        left, right = ids >> self._half, ids & self._mask
        for key in reversed(self._keys):
            left, right = right ^ self._mix(left, *key), left
        return (left << self._half) | right

    @property
    def _mask(self) -> int:
        return (1 << self._half) - 1

    def _mix(self, half: Tensor, factor: int, shift: int) -> Tensor:
        # halves and keys stay below 2^31, so that no product leaves int64
        mixed = (half * factor + shift) % PRIME
        mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D % PRIME
        return (mixed ^ (mixed >> 13)) & self._mask
