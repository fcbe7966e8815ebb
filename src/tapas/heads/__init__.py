"""Heads: everything from query to loss."""

from tapas.heads.base import Head
from tapas.heads.config import TapasConfig
from tapas.heads.diagnostics import Diagnosis
from tapas.heads.flat import FlatHead, OwnRows, SharedSample
from tapas.heads.full import FullSoftmax
from tapas.heads.sampled import SampledSoftmax
from tapas.heads.tapas import TapasSoftmax

__all__ = [
    "Diagnosis",
    "FlatHead",
    "FullSoftmax",
    "Head",
    "OwnRows",
    "SampledSoftmax",
    "SharedSample",
    "TapasConfig",
    "TapasSoftmax",
]
