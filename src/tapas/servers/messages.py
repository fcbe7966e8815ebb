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


class Stamp(NamedTuple):
    """Who answers, and how many pushes it had applied by then."""

    incarnation: str  # another one after a restart
    version: int


def incarnation() -> str:
    """A name that no other process, here or elsewhere, has or will have."""
    return f"{socket.gethostname()}:{os.getpid()}:{time.time_ns()}"


class Scoring(NamedTuple):
    """How a second pass scores; its queries travel beside it, once for all servers of a host."""

    rule: Selection
    temperature: float
    complete: bool  # whether the queries that score are the whole batch


class Scored(NamedTuple):
    """A server's part of what the second pass keeps, K classes, and of T targets."""

    ids: Ids  # (K,) rising
    log_q: Floats  # (K,)
    rows: Floats  # (K + T, D)
    biases: Floats  # (K + T,)
    stamp: Stamp


class Receipt(NamedTuple):
    """What became of a push."""

    fresh: bool  # False: it had been applied before
    staleness: int  # pushes of others applied between its reads and it
    rows: int
    collided: int  # rows of these that others had moved in between
    stamp: Stamp


def tensor_of(array: NDArray[Any]) -> Tensor:
    """A copy: arrays that come from another process cannot be written to."""
    return torch.tensor(array)


def array_of(tensor: Tensor) -> Any:
    """For another process: contiguous, or all that a view is a part of would travel."""
    return tensor.detach().to("cpu").contiguous().numpy()


class Ledger:
    """Pushes by (worker, sequence); all with a sequence below `settled` have been applied.

    A worker says below which sequence it will never push again: those need no entry. What one
    worker has heard of says nothing of the pushes of another.
    """

    def __init__(self, settled: int = 0):
        self.settled = settled
        self._settled_by: dict[int | str, int] = {}
        self.num_repeated = 0
        self._entries: dict[tuple[int | str, int], Receipt] = {}

    def settle(self, worker: int | str, below: int) -> None:
        if below > self._settled_by.get(worker, self.settled):
            self._settled_by[worker] = below
            for tag in [t for t in self._entries if t[0] == worker and t[1] < below]:
                del self._entries[tag]

    def find(self, worker: int | str, sequence: int, stamp: Stamp) -> Receipt | None:
        """What to answer to a push that has been applied before; None if it has not."""
        found = self._entries.get((worker, sequence))
        if found is None and sequence >= self._settled_by.get(worker, self.settled):
            return None
        self.num_repeated += 1
        return found or Receipt(False, 0, 0, 0, stamp)

    def enter(self, worker: int | str, sequence: int, receipt: Receipt) -> Receipt:
        """Note that it is applied now."""
        self._entries[worker, sequence] = receipt._replace(fresh=False)
        return receipt
