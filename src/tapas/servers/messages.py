"""What travels between workers and servers: arrays, and a few numbers beside them."""

import os
import socket
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.selection import Selection

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


class Version(NamedTuple):
    """The state of a server: which of its processes answers, and after how many pushes."""

    incarnation: str  # changes with every restart
    num_pushes: int


def incarnation() -> str:
    """A name that no other process, here or elsewhere, has or will have."""
    return f"{socket.gethostname()}:{os.getpid()}:{time.time_ns()}"


class Scoring(NamedTuple):
    """How a second pass scores; its queries travel beside it, once for all servers of a host."""

    rule: Selection
    temperature: float
    complete: bool  # whether the queries that score are the whole batch


class ScoredRows(NamedTuple):
    """A server's part of what the second pass keeps, K classes, and of T targets."""

    ids: Ids  # (K,) rising
    log_q: Floats  # (K,)
    rows: Floats  # (K + T, D)
    biases: Floats  # (K + T,)
    version: Version


class PushResult(NamedTuple):
    """What became of a push."""

    fresh: bool  # False: it had been applied before
    staleness: int  # pushes of others applied between its reads and it
    rows: int
    collided: int  # rows of these that others had moved in between
    version: Version


def to_tensor(array: NDArray[Any]) -> Tensor:
    """A copy: arrays that come from another process cannot be written to."""
    return torch.tensor(array)


def to_array(tensor: Tensor) -> Any:
    """For another process: contiguous, or all that a view is a part of would travel."""
    return tensor.detach().to("cpu").contiguous().numpy()


class AppliedPushes:
    """Pushes by (worker, sequence); all with a sequence below `applied_below` have been applied.

    A worker says below which sequence it will never push again: those need no entry. What one
    worker has heard of says nothing of the pushes of another.
    """

    def __init__(self, applied_below: int = 0):
        self.applied_below = applied_below
        self._forgotten_below: dict[int | str, int] = {}
        self.num_repeated = 0
        self._entries: dict[tuple[int | str, int], PushResult] = {}

    def forget(self, worker: int | str, below: int) -> None:
        if below > self._forgotten_below.get(worker, self.applied_below):
            self._forgotten_below[worker] = below
            for tag in [t for t in self._entries if t[0] == worker and t[1] < below]:
                del self._entries[tag]

    def find(self, worker: int | str, sequence: int, version: Version) -> PushResult | None:
        """What to answer to a push that has been applied before; None if it has not."""
        found = self._entries.get((worker, sequence))
        if found is None and sequence >= self._forgotten_below.get(worker, self.applied_below):
            return None
        self.num_repeated += 1
        return found or PushResult(False, 0, 0, 0, version)

    def add(self, worker: int | str, sequence: int, result: PushResult) -> PushResult:
        """Note that it is applied now."""
        self._entries[worker, sequence] = result._replace(fresh=False)
        return result
