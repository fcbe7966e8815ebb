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

__all__ = [
    "METHODS",
    "FourWaysConfig",
    "FourWaysResult",
    "MethodResult",
    "Point",
    "Progress",
    "Score",
    "train_four_ways",
]
