"""What travels between workers and servers: arrays, and a few numbers beside them."""

import os
import socket
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


class Stamp(NamedTuple):
    """Who answers, and how many pushes it had applied by then."""

    incarnation: str  # another one after a restart
    version: int


def incarnation() -> str:
    """A name that no other process, here or elsewhere, has or will have."""
    return f"{socket.gethostname()}:{os.getpid()}:{time.time_ns()}"


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
