"""Messages between workers and servers, and `AppliedPushes`, which drops repeated ones."""

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
    """A unique name for the current process of a server or worker."""
    return f"{socket.gethostname()}:{os.getpid()}:{time.time_ns()}"


class Scoring(NamedTuple):
    """Settings of a second pass; its queries are sent separately, shared by all servers."""

    rule: Selection
    temperature: float
    complete: bool  # whether all queries of the batch score the pool


class ScoredRows(NamedTuple):
    """The K classes that a server keeps in a second pass, and the rows of its T targets."""

    ids: Ids  # (K,) ascending
    log_q: Floats  # (K,)
    rows: Floats  # (K + T, D)
    biases: Floats  # (K + T,)
    version: Version


class PushResult(NamedTuple):
    """The result of a push."""

    fresh: bool  # False if it had been applied before
    staleness: int  # pushes applied between the reads of this one and itself
    rows: int
    collided: int  # of these rows, those that other pushes moved in between
    version: Version


def to_tensor(array: NDArray[Any]) -> Tensor:
    """A copy of `array`; arrays from another process are read-only."""
    return torch.tensor(array)


def to_array(tensor: Tensor) -> Any:
    """A contiguous array on the CPU; a view would send all of its base."""
    return tensor.detach().to("cpu").contiguous().numpy()


class AppliedPushes:
    """Results of applied pushes by (worker, sequence), to answer repeated ones.

    All pushes with a sequence below `applied_below` are applied. Each worker says below which
    sequence it will not send its pushes again, so that their results can be forgotten.
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
        """The result of a push that was applied before, else None."""
        found = self._entries.get((worker, sequence))
        if found is None and sequence >= self._forgotten_below.get(worker, self.applied_below):
            return None
        self.num_repeated += 1
        return found or PushResult(False, 0, 0, 0, version)

    def add(self, worker: int | str, sequence: int, result: PushResult) -> PushResult:
        """Note that a push has been applied."""
        self._entries[worker, sequence] = result._replace(fresh=False)
        return result
