"""Native kernels for CPUs, where they were built; every one has a double in PyTorch."""

from tapas.native.kernels import (
    MOST_RANKED,
    alias,
    batch_score,
    distinct,
    log_sum,
    mean_share,
    top,
)
from tapas.native.library import reaches, state, switched_off

__all__ = [
    "MOST_RANKED",
    "alias",
    "batch_score",
    "distinct",
    "log_sum",
    "mean_share",
    "reaches",
    "state",
    "switched_off",
    "top",
]
