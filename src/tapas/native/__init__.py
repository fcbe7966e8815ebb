"""Native CPU kernels, if they were built; each has an equivalent in PyTorch."""

from tapas.native.kernels import (
    MAX_TOPK,
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
    topk,
    update,
)
from tapas.native.library import readable, state, supports, switched_off, writable

__all__ = [
    "MAX_TOPK",
    "Biases",
    "alias",
    "batch_score",
    "distinct",
    "gradients",
    "log_sum",
    "mean_share",
    "mix",
    "permute",
    "readable",
    "state",
    "sum_rows",
    "supports",
    "switched_off",
    "topk",
    "update",
    "writable",
]
