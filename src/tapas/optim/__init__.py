"""Optimizers of class rows, and `Combined`, which steps them with that of an encoder."""

from tapas.optim.combined import Combined
from tapas.optim.gradient_queue import anchors
from tapas.optim.optimizers import SGD, Adagrad, LazyAdam, RowOptimizer, RowwiseAdagrad
from tapas.optim.row_updates import RowUpdate

__all__ = [
    "SGD",
    "Adagrad",
    "Combined",
    "LazyAdam",
    "RowOptimizer",
    "RowUpdate",
    "RowwiseAdagrad",
    "anchors",
]
