"""Train softmax models over a hundred thousand to a billion classes with TAPAS.

The names below are what most users need. See also `tapas.heads` (all methods), `tapas.optim`,
`tapas.metrics`, `tapas.proposals` and `tapas.rng`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tapas import heads, metrics, optim, proposals, rng
from tapas.distributed import ShardedTable, join_ranks
from tapas.errors import DataError, PeerError, TapasError, UsageError
from tapas.heads import FullSoftmax, SampledSoftmax, TapasSoftmax, citation
from tapas.proposals import LogUniform, Mixture, Proposal, Squashed, Uniform
from tapas.schedule import Anneal
from tapas.selection import Priority, Selection, Top
from tapas.tables import ClassTable, LocalTable
from tapas.version import __version__ as __version__

if TYPE_CHECKING:
    from tapas.checkpoints.model import load_checkpoint, save_checkpoint

__all__ = [
    "Anneal",
    "ClassTable",
    "DataError",
    "FullSoftmax",
    "LocalTable",
    "LogUniform",
    "Mixture",
    "PeerError",
    "Priority",
    "Proposal",
    "SampledSoftmax",
    "Selection",
    "ShardedTable",
    "Squashed",
    "TapasError",
    "TapasSoftmax",
    "Top",
    "Uniform",
    "UsageError",
    "citation",
    "heads",
    "join_ranks",
    "load_checkpoint",
    "metrics",
    "optim",
    "proposals",
    "rng",
    "save_checkpoint",
]


def __getattr__(name: str) -> object:
    if name in ("load_checkpoint", "save_checkpoint"):  # imported on first use: slow
        return getattr(import_module("tapas.checkpoints.model"), name)
    raise AttributeError(f"module 'tapas' has no attribute '{name}'")


def __dir__() -> list[str]:
    """The public names, without the modules that they were imported from."""
    return [*__all__, "__version__"]
