"""Losses as pure functions of logits."""

from tapas.losses.sampled_softmax import (
    Shares,
    kept_gradients,
    kept_log_sum,
    sampled_softmax_loss,
    target_costs,
)

__all__ = ["Shares", "kept_gradients", "kept_log_sum", "sampled_softmax_loss", "target_costs"]
