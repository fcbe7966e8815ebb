"""Heads: everything from query to loss."""

from tapas.heads.config import TapasConfig
from tapas.heads.diagnostics import Diagnosis
from tapas.heads.tapas import TapasSoftmax

__all__ = ["Diagnosis", "TapasConfig", "TapasSoftmax"]
