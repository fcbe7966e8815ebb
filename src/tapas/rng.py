"""Randomness is named, never ambient: no global seed, and nothing to save but numbers."""

import hashlib
from operator import index

import torch

from tapas.errors import UsageError


def stream(seed: int, *path: str | int) -> torch.Generator:
    """An independent generator named by what it is for.

    `stream(seed, "pool", step)` is the same numbers on every run, on any world
    size, and after a resume at `step`.
    """
    name = [part if isinstance(part, str) else index(part) for part in (seed, *path)]
    key = hashlib.blake2b(repr(tuple(name)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)


def check_seed(seed: int) -> int:
    """`seed` as a plain int that a checkpoint can hold."""
    try:
        whole = index(seed)
    except TypeError:
        raise UsageError(f"seed must be a whole number, got {seed!r}.") from None
    if not -(2**63) <= whole < 2**63:
        raise UsageError(f"seed must be below 2^63, got {whole}.")
    return whole


def check_generator(generator: torch.Generator) -> None:
    """Draws are made on the CPU, so that one seed gives the same ids on every device."""
    if not isinstance(generator, torch.Generator):
        raise UsageError(
            f"generator must be a torch.Generator, got {type(generator).__name__}. "
            "tapas.rng.stream(seed, 'name') makes one."
        )
    if generator.device.type != "cpu":
        raise UsageError(
            f"generator is on {generator.device}; expected cpu. Ids are drawn on the CPU, so that "
            "one seed gives the same ids on every device, and then moved to the table's."
        )
