"""Memory that steps hand on to the next ones.

A step keeps megabytes from its forward to its backward pass. Asked for anew each time, aligned and
among smaller pieces, they often do not fit where the last ones were (glibc before 2.38), and the
heap grows: by 39 MB in 1,500 steps that use 6 MB each.
"""

import weakref

import torch
from torch import Tensor

SMALLEST = 1 << 20  # bytes; keeping smaller pieces would take longer than asking for them
LARGEST = 32 << 20  # the system gets larger ones back at once
MOST_SPARE = 4

_spare: dict[int, Tensor] = {}  # by size; each access is one atomic operation


def work_memory(size: int) -> Tensor:
    """(size,) float32, of any values, perhaps used before: free again with its last reference."""
    if not SMALLEST <= size * torch.float32.itemsize <= LARGEST:
        return torch.empty(size, dtype=torch.float32, device="cpu")
    memory = _spare.pop(size, None)
    if memory is None:
        memory = torch.empty(size, dtype=torch.float32, device="cpu")
    view = memory.numpy()  # the result and all its views hold this array
    weakref.finalize(view, _give_back, memory).atexit = False
    return torch.from_numpy(view)


def _give_back(memory: Tensor) -> None:
    if len(_spare) >= MOST_SPARE:
        _spare.clear()
    _spare[memory.shape[0]] = memory
