"""Train softmax models over a hundred thousand to a billion classes with TAPAS.

The names below are what most users need. See also `tapas.heads` (all methods), `tapas.optim`,
`tapas.metrics`, `tapas.proposals` and `tapas.rng`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tapas import heads, metrics, optim, proposals, rng
from tapas.distributed import ShardedTable, join_ranks
from tapas.errors import DataError, PeerError, TapasError, UsageError
from tapas.extras import how_to_install as _how_to_install
from tapas.heads import FullSoftmax, SampledSoftmax, TapasSoftmax, citation, ids_of
from tapas.proposals import LogUniform, Mixture, Proposal, Squashed, Uniform
from tapas.schedule import Anneal
from tapas.selection import Priority, Selection, Top
from tapas.tables import ClassTable, LocalTable, serving_state_dict
from tapas.version import __version__ as __version__

if TYPE_CHECKING:
    from tapas.checkpoints.model import load_checkpoint, save_checkpoint
    from tapas.training.load import load

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
    "ids_of",
    "join_ranks",
    "load",
    "load_checkpoint",
    "metrics",
    "optim",
    "proposals",
    "rng",
    "save_checkpoint",
    "serving_state_dict",
]


_LATE = {  # imported on first use: slow, or in need of more libraries
    "load": "tapas.training.load",
    "load_checkpoint": "tapas.checkpoints.model",
    "save_checkpoint": "tapas.checkpoints.model",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module 'tapas' has no attribute '{name}'")
    try:
        return getattr(import_module(_LATE[name]), name)
    except ModuleNotFoundError as error:
        if (words := _how_to_install(error.name)) is None:
            raise
        raise ModuleNotFoundError(f"tapas.{name}: {words}", name=error.name) from None


def __dir__() -> list[str]:
    """The public names, without the modules that they were imported from."""
    return [*__all__, "__version__"]
