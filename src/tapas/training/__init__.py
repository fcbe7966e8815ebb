"""Training loops around the heads."""

from tapas.training.four_ways import (
    METHODS,
    FourWaysConfig,
    FourWaysResult,
    MethodResult,
    Point,
    Progress,
    Score,
    train_four_ways,
)
from tapas.training.model_checkpoint import load_checkpoint, save_checkpoint

__all__ = [
    "METHODS",
    "FourWaysConfig",
    "FourWaysResult",
    "MethodResult",
    "Point",
    "Progress",
    "Score",
    "load_checkpoint",
    "save_checkpoint",
    "train_four_ways",
]
