"""Named random streams: generators derived from a seed and a name, never from global state."""

import hashlib
from operator import index

import numpy as np
import torch
from numpy.typing import NDArray

from tapas.errors import UsageError

Words = NDArray[np.uint64]


def stream(seed: int, *path: str | int) -> torch.Generator:
    """An independent CPU generator for the given seed and name.

    `stream(seed, "pool", step)` gives the same numbers in every run, on any number of ranks and
    after resuming at `step`.
    """
    name = [part if isinstance(part, str) else index(part) for part in (seed, *path)]
    key = hashlib.blake2b(repr(tuple(name)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)


def new_key(generator: torch.Generator) -> int:
    """A key for `philox`, drawn from `generator`."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator))


def philox(key: int, count: int) -> Words:
    """`count` random numbers of 64 bits, (count,).

    Philox4x32-10 of Salmon et al. 2011, which also runs on GPUs: number i depends on `key` and i
    alone. The same numbers as in native/draws.h.
    """
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = np.arange((count + 1) // 2, dtype=np.uint64)  # each gives two numbers
    words = [counter & mask, counter >> half, np.zeros_like(counter), np.zeros_like(counter)]
    low, high = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
    for _ in range(10):
        first, second = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [
            (second >> half) ^ words[1] ^ np.uint64(low),
            second & mask,
            (first >> half) ^ words[3] ^ np.uint64(high),
            first & mask,
        ]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    both = words[1] << half | words[0], words[3] << half | words[2]
    return np.stack(both, axis=1).reshape(-1)[:count]


def uniform_numbers(words: Words) -> NDArray[np.float64]:
    """Numbers in [0, 1) from the upper 52 bits of `words`."""
    return (words >> np.uint64(12)).astype(np.float64) * 2.0**-52


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
