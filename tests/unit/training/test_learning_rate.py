"""Learning rates over a run."""

import math

import pytest
import torch

from tapas.optim import RowwiseAdagrad
from tapas.tables import LocalTable
from tapas.training.config import OptimizerConfig
from tapas.training.learning_rate import LearningRates


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_both_rates_rise_over_the_warm_up_then_stay_or_fall(schedule):
    rates = LearningRates(OptimizerConfig(warmup=0.1, schedule=schedule), 200)
    factor = [rates.factor(step) for step in range(200)]
    cosine = [(1 + math.cos(math.pi * step / 200)) / 2 for step in range(200)]
    shape = cosine if schedule == "cosine" else [1.0] * 200
    assert factor == pytest.approx([min(1, (s + 1) / 20) * shape[s] for s in range(200)])
    assert 0 < factor[-1] <= 1


def test_without_a_warm_up_the_first_step_is_full():
    assert LearningRates(OptimizerConfig(), 1).factor(0) == 1
    assert LearningRates(OptimizerConfig(warmup=1.0), 4).factor(3) == 1


def test_a_step_beyond_the_planned_ones_moves_nothing():
    assert LearningRates(OptimizerConfig(schedule="cosine"), 10).factor(11) == pytest.approx(0)


def test_the_rates_of_rows_and_encoder_are_set():
    config = OptimizerConfig(rows_lr=0.4, encoder_lr=0.02, schedule="cosine")
    rates, weight = LearningRates(config, 10), torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight])
    fused = LocalTable(5, 2, row_optimizer=RowwiseAdagrad.fused(lr=1.0))
    rates.set_encoder(5, optimizer)
    rates.set_rows(5, [fused, LocalTable(5, 2)])  # the second has no optimizer of its own
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert fused.row_optimizer.lr == pytest.approx(0.2)
