"""Our rule: priority sampling (Duffield, Lund, Thorup 2007) by softmax share.

    g_y = (1 - eps) mean_a softmax_y((logit_ay - log_q_y) / tau) + eps / |pool|
    keep the n largest of g_y / u_y, u_y uniform in (0, 1]; t is the (n+1)-th
    w_y = max(1, t / g_y)

The softmax runs over the pool without the query's own targets. Whatever positive g is
used, the weighted sum over the kept classes is an unbiased estimate of the pool's sum
for every example: hard negatives are kept almost surely and the loss stays right.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

import tapas.native as native
from tapas.candidates import mask_hits
from tapas.errors import UsageError
from tapas.selection.base import Selection, SelectionInput, builtin, largest
from tapas.shapes import check_positive

CHUNK = 16384  # classes read at once
QUERIES = 64  # queries normalised at once, at least
SCRATCH = 1 << 22  # floats of the matrix they are normalised in, if that holds more
Piece = tuple[int, Tensor, Tensor]  # start, weights and biases of a stretch of the pool
TINY = 1e-30  # g must be positive, also where a softmax underflows


@dataclass(frozen=True, kw_only=True, slots=True)
class Priority(Selection):
    """Keep by priority, weight by the inverse of the chance to be kept.

    `floor` (eps) is the part of g spread evenly over the pool; it bounds the weight of a
    class that the scoring queries overlooked, and is 0 when every query scores. A
    temperature other than 1 makes g flatter (above) or sharper (below) than the variance
    calls for; the estimate stays unbiased.
    """

    score_queries: int | None = 64
    floor: float = 0.1

    def __post_init__(self) -> None:
        if self.score_queries is not None:
            check_positive("score_queries", self.score_queries)
        if not 0 <= self.floor <= 1:
            raise UsageError(f"floor must be between 0 and 1, got {self.floor!r}.")

    @builtin
    def select(self, given: SelectionInput, keep: int) -> tuple[Tensor, Tensor]:
        share = mean_share(given)
        if not given.complete:
            share.mul_(1 - self.floor).add_(self.floor / len(given))
        share.clamp_(min=TINY)
        kept, threshold = largest(share / given.noise, keep)
        return kept, (threshold / share[kept]).clamp_(min=1.0).log_()


def mean_share(given: SelectionInput) -> Tensor:
    """Mean over the scoring queries of each class's share of the pool's softmax, (P,)."""
    if given.native is not None:
        weight, positions, bias = given.native
        return native.mean_share(
            weight,
            positions,
            bias - given.log_q,
            given.query,
            given.ids,
            given.target,
            temperature=given.temperature,
        )
    size, num_queries = len(given), given.query.shape[0]
    width = min(max(QUERIES, SCRATCH // size), num_queries)
    query = given.query if given.temperature == 1 else given.query / given.temperature
    if num_queries <= width:
        pieces: Iterable[Piece] = (
            (s, *given.rows(s, min(s + CHUNK, size))) for s in range(0, size, CHUNK)
        )
    else:
        pieces = [(0, *given.rows(0, size))]  # several blocks of queries read it: gather once
    scratch = query.new_empty(width, size)
    share = query.new_zeros(size)
    for first in range(0, num_queries, width):
        last = min(first + width, num_queries)
        logit = scratch[: last - first]
        for start, weight, bias in pieces:
            part = slice(start, start + weight.shape[0])
            offset = bias - given.log_q[part]
            if given.temperature != 1:
                offset /= given.temperature
            torch.addmm(offset, query[first:last], weight.t(), out=logit[:, part])
        mask_hits(logit, given.ids, given.target[first:last])
        # a query that owns the whole pool, or for which nothing in it can be, has no say
        silent = logit.amax(dim=1, keepdim=True).isneginf()
        torch.softmax(logit, dim=1, out=logit)
        logit.masked_fill_(silent, 0.0)
        share += logit.sum(dim=0)
    return share.div_(num_queries)
