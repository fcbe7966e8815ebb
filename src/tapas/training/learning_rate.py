"""Learning rates over a run: a linear warm-up, then constant or down to 0 along a cosine.

    factor(step) = min(1, (step + 1) / (warmup * steps)) * (1 + cos(pi * step / steps)) / 2

It depends on the step only, so that a resumed run goes on as if it had never stopped.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from tapas.tables import ClassTable
from tapas.training.config import OptimizerConfig, TrainConfig


@dataclass(frozen=True, slots=True)
class LearningRates:
    """The learning rates of rows and encoder at each of `steps` steps."""

    config: OptimizerConfig
    steps: int

    def factor(self, step: int) -> float:
        """What both learning rates are multiplied by at `step`, 0, 1, ..."""
        warm = min(1.0, (step + 1) / max(1.0, self.config.warmup * self.steps))
        if self.config.schedule == "constant":
            return warm
        return warm * (1 + math.cos(math.pi * min(1.0, step / self.steps))) / 2

    def set_encoder(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.config.encoder_lr * self.factor(step)

    def set_rows(self, step: int, tables: Iterable[ClassTable]) -> None:
        for table in tables:
            if table.row_optimizer is not None:
                table.row_optimizer.lr = self.config.rows_lr * self.factor(step)


def learning_rates(config: TrainConfig) -> LearningRates:
    """Those of a resolved `config`, whose number of steps is known."""
    return LearningRates(config.optimizer, config.loop.steps or 1)
