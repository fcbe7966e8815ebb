"""Named random streams: generators derived from a seed and a name, never from global state."""

import hashlib
from operator import index

import torch

from tapas.errors import UsageError


def stream(seed: int, *path: str | int) -> torch.Generator:
    """An independent CPU generator for the given seed and name.

    `stream(seed, "pool", step)` gives the same numbers in every run, on any number of ranks and
    after resuming at `step`.
    """
    name = [part if isinstance(part, str) else index(part) for part in (seed, *path)]
    key = hashlib.blake2b(repr(tuple(name)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)


def check_seed(seed: int, name: str = "seed") -> int:
    """Return `seed` as an int that fits into int64, or raise UsageError."""
    try:
        number = index(seed)
    except TypeError:
        raise UsageError(f"{name} must be an integer, got {seed!r}.") from None
    if not -(2**63) <= number < 2**63:
        raise UsageError(f"{name} must be between -2^63 and 2^63 - 1, got {number}.")
    return number


def check_generator(generator: torch.Generator) -> None:
    """Raise UsageError unless `generator` is a CPU generator.

    Ids are drawn on the CPU so that one seed gives the same ids on every device.
    """
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
