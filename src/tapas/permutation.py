"""A random permutation of 0 .. n-1 that needs no memory: a keyed Feistel network.

The network permutes a slightly larger range. Numbers that land outside 0 .. n-1 are sent through
it again until they land inside (cycle walking), so that the result is a permutation, too.
"""

import torch
from torch import Tensor

import tapas.native as native
from tapas.shapes import check_ids, check_positive

ROUNDS = 4
PRIME = 2**31 - 1


class Permutation:
    """A permutation of 0 .. size-1 in O(1) memory; its keys are drawn from `generator`."""

    def __init__(self, size: int, generator: torch.Generator):
        self.size = check_positive("size", size)
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._keys = torch.randint(1, PRIME, (ROUNDS, 2), generator=generator, device="cpu")

    def permute(self, ids: Tensor) -> Tensor:
        """The position of each id, in the shape of `ids`."""
        return self._walk(check_ids("ids", ids, self.size), backwards=False)

    def inverse(self, positions: Tensor) -> Tensor:
        """The id at each of `positions`: permute(inverse(p)) == p."""
        return self._walk(check_ids("positions", positions, self.size), backwards=True)

    def _walk(self, ids: Tensor, *, backwards: bool) -> Tensor:
        if native.supports(ids):
            return native.permute(ids, self._half, self._keys, self.size, backwards=backwards)
        step = self._decrypt if backwards else self._encrypt
        out = step(ids.reshape(-1))
        outside = (out >= self.size).nonzero()[:, 0]
        while len(outside):
            moved = step(out[outside])
            out[outside] = moved
            outside = outside[moved >= self.size]
        return out.view(ids.shape)

    def _encrypt(self, ids: Tensor) -> Tensor:
        """A permutation of 0 .. 4^half - 1, the smallest such range that holds all ids."""
        left, right = ids >> self._half, ids & self._mask
        for key in self._keys.tolist():
            left, right = right, left ^ self._mix(right, *key)
        return (left << self._half) | right

    def _decrypt(self, ids: Tensor) -> Tensor:
        left, right = ids >> self._half, ids & self._mask
        for key in reversed(self._keys.tolist()):
            left, right = right ^ self._mix(left, *key), left
        return (left << self._half) | right

    @property
    def _mask(self) -> int:
        return (1 << self._half) - 1

    def _mix(self, half: Tensor, factor: int, shift: int) -> Tensor:
        # halves and keys stay below 2^31, so that no product overflows int64
        mixed = (half * factor + shift) % PRIME
        mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D % PRIME
        return (mixed ^ (mixed >> 13)) & self._mask
