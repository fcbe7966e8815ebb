"""Heads: everything from query to loss."""

from tapas.heads.diagnostics import Diagnosis
from tapas.heads.tapas import TapasConfig, TapasSoftmax

__all__ = ["Diagnosis", "TapasConfig", "TapasSoftmax"]
