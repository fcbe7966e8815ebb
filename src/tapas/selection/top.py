"""The paper's rule: keep the n classes with the highest scores, summed over the batch.

    score_y = log sum_i exp((query_i . row_y + bias_y) / tau)

Kept classes get no weights: the paper wants the emphasis on hard negatives.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import tapas.native as native
from tapas.selection.base import Selection, SelectionInput, builtin, largest
from tapas.shapes import check_positive

CHUNK = 1024  # classes scored at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Top(Selection):
    """Keep the highest scores, without weights (Bai, Goldman, Zhang 2017).

    There is no correction for the classes that are dropped, so the partition sum is underestimated.

    Args:
        score_queries: how many queries of a batch score the pool; None is all.
    """

    random: ClassVar[bool] = False
    score_queries: int | None = None

    def __post_init__(self) -> None:
        if self.score_queries is not None:
            check_positive("score_queries", self.score_queries)

    @builtin
    def select(self, given: SelectionInput, keep: int) -> tuple[Tensor, Tensor]:
        kept, _ = largest(batch_score(given), keep)
        return kept, torch.zeros(keep, dtype=torch.float32, device=kept.device)


def batch_score(given: SelectionInput) -> Tensor:
    """(P,) log sum_i exp(logit_iy / tau) of every class y of the pool."""
    if given.native is not None:
        return native.batch_score(given.native, given.query, temperature=given.temperature)
    query = given.query.t() if given.temperature == 1 else (given.query / given.temperature).t()
    size = len(given)
    scores = []
    for start in range(0, size, CHUNK):
        weight, bias = given.rows(start, min(start + CHUNK, size))
        logit = torch.mm(weight, query)
        # log_softmax is fused and 1.6 times as fast as logsumexp; any column minus its
        # log_softmax is the logsumexp
        first = logit[:, 0].clone()
        torch.log_softmax(logit, dim=1, out=logit)
        scores.append(first.sub_(logit[:, 0]).add_(bias, alpha=1 / given.temperature))
    return scores[0] if len(scores) == 1 else torch.cat(scores)
