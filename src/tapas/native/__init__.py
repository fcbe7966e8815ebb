"""Native kernels for CPUs, where they were built; every one has a double in PyTorch."""

from tapas.native.kernels import (
    MOST_RANKED,
    Biases,
    alias,
    batch_score,
    distinct,
    gradients,
    log_sum,
    mean_share,
    mix,
    permute,
    sum_rows,
    top,
    update,
)
from tapas.native.library import reaches, readable, state, switched_off, writable

__all__ = [
    "MOST_RANKED",
    "Biases",
    "alias",
    "batch_score",
    "distinct",
    "gradients",
    "log_sum",
    "mean_share",
    "mix",
    "permute",
    "reaches",
    "readable",
    "state",
    "sum_rows",
    "switched_off",
    "top",
    "update",
    "writable",
]
