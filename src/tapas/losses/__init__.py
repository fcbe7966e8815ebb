"""Losses as pure functions of logits, rows or queries; a head reduces what they return."""

from tapas.losses.sampled_softmax import (
    Shares,
    kept_gradients,
    kept_log_sum,
    sampled_softmax_loss,
    target_costs,
)

__all__ = ["Shares", "kept_gradients", "kept_log_sum", "sampled_softmax_loss", "target_costs"]
