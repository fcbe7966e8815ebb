"""Ranking metrics: precision, recall, MAP, NDCG and MRR of ranked lists of class ids."""

from tapas.metrics.ranking import (
    average_precision_at_k,
    mean_average_precision_at_k,
    mean_precision_at_k,
    ndcg_at_k,
    precision_at_k,
    rank_classes,
    recall_at_k,
    reciprocal_rank,
)

__all__ = [
    "average_precision_at_k",
    "mean_average_precision_at_k",
    "mean_precision_at_k",
    "ndcg_at_k",
    "precision_at_k",
    "rank_classes",
    "recall_at_k",
    "reciprocal_rank",
]
