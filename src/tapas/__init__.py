"""Softmax models over a hundred thousand to a billion classes, trained with TAPAS."""

from importlib import import_module
from typing import TYPE_CHECKING

from tapas import optim
from tapas.candidates import Candidates
from tapas.distributed import ShardedTable, join_ranks
from tapas.errors import DataError, PeerError, TapasError, UsageError
from tapas.heads import Diagnosis, TapasConfig, TapasSoftmax, citation
from tapas.losses import sampled_softmax_loss
from tapas.metrics import (
    average_precision_at_k,
    mean_average_precision_at_k,
    mean_precision_at_k,
    ndcg_at_k,
    precision_at_k,
    rank_classes,
    recall_at_k,
    reciprocal_rank,
)
from tapas.proposals import Bigram, LogUniform, Mixture, Proposal, Relabelled, Squashed, Uniform
from tapas.rng import stream
from tapas.schedule import Anneal, Constant, Schedule
from tapas.selection import PoolView, Priority, Selection, Top
from tapas.tables import ClassTable, LocalTable
from tapas.version import __version__ as __version__

if TYPE_CHECKING:
    from tapas.checkpoints.model import load_checkpoint, save_checkpoint

__all__ = [
    "Anneal",
    "Bigram",
    "Candidates",
    "ClassTable",
    "Constant",
    "DataError",
    "Diagnosis",
    "LocalTable",
    "LogUniform",
    "Mixture",
    "PeerError",
    "PoolView",
    "Priority",
    "Proposal",
    "Relabelled",
    "Schedule",
    "Selection",
    "ShardedTable",
    "Squashed",
    "TapasConfig",
    "TapasError",
    "TapasSoftmax",
    "Top",
    "Uniform",
    "UsageError",
    "average_precision_at_k",
    "citation",
    "join_ranks",
    "load_checkpoint",
    "mean_average_precision_at_k",
    "mean_precision_at_k",
    "ndcg_at_k",
    "optim",
    "precision_at_k",
    "rank_classes",
    "recall_at_k",
    "reciprocal_rank",
    "sampled_softmax_loss",
    "save_checkpoint",
    "stream",
]


def __getattr__(name: str) -> object:
    if name in ("load_checkpoint", "save_checkpoint"):  # seldom needed, slow to import
        return getattr(import_module("tapas.checkpoints.model"), name)
    raise AttributeError(f"module 'tapas' has no attribute '{name}'")
