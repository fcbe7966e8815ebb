"""Train softmax models over a hundred thousand to a billion classes with TAPAS.

The names below are what most users need. See also `tapas.heads` (all methods), `tapas.optim`,
`tapas.metrics`, `tapas.proposals` and `tapas.rng`.
"""

from tapas.forks import prepare_for_forks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tapas import heads, metrics, optim, proposals, rng
    from tapas.checkpoints.model import load_checkpoint, save_checkpoint
    from tapas.distributed import ShardedTable, join_ranks
    from tapas.errors import DataError, PeerError, TapasError, UsageError
    from tapas.heads import FullSoftmax, SampledSoftmax, TapasSoftmax, citation, ids_of
    from tapas.proposals import LogUniform, Mixture, Proposal, Squashed, Uniform
    from tapas.schedule import Anneal
    from tapas.selection import Priority, Selection, Top
    from tapas.tables import ClassTable, LocalTable, serving_state_dict
    from tapas.training.load import load
    from tapas.version import __version__ as __version__

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

# Imported on first use: torch takes seconds, in which the command could not handle Ctrl-C
_MODULE_OF = {
    name: module
    for module, names in {
        "tapas.checkpoints.model": "load_checkpoint save_checkpoint",
        "tapas.distributed": "ShardedTable join_ranks",
        "tapas.errors": "DataError PeerError TapasError UsageError",
        "tapas.heads": "FullSoftmax SampledSoftmax TapasSoftmax citation ids_of",
        "tapas.proposals": "LogUniform Mixture Proposal Squashed Uniform",
        "tapas.schedule": "Anneal",
        "tapas.selection": "Priority Selection Top",
        "tapas.tables": "ClassTable LocalTable serving_state_dict",
        "tapas.training.load": "load",
        "tapas.version": "__version__",
    }.items()
    for name in names.split()
}


prepare_for_forks()


def __getattr__(name: str) -> object:
    from importlib import import_module
    from importlib.util import find_spec

    if name in _MODULE_OF:
        try:
            value = getattr(import_module(_MODULE_OF[name]), name)
        except ModuleNotFoundError as error:
            from tapas.extras import how_to_install

            if (words := how_to_install(error.name)) is None:
                raise
            raise ModuleNotFoundError(f"tapas.{name}: {words}", name=error.name) from None
    else:
        if name.startswith("_") or find_spec(f"tapas.{name}") is None:
            raise AttributeError(f"module 'tapas' has no attribute '{name}'")
        value = import_module(f"tapas.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, without the modules that they were imported from."""
    return [*__all__, "__version__"]
