"""Our rule: priority sampling (Duffield, Lund, Thorup 2007) by softmax share.

    g_y = (1 - eps) mean_a softmax_y((logit_ay - log_q_y) / tau) + eps / |pool|
    keep the n largest of g_y / u_y, u_y uniform in (0, 1]; t is the (n+1)-th
    w_y = max(1, t / g_y)

The softmax runs over the pool without the query's targets. Hard negatives are kept almost
surely. For any positive g the weighted sum over the kept classes is an unbiased estimate of
the pool's sum, for every example; its logarithm, and hence the loss, is not unbiased.
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

CHUNK = 16384  # classes read at a time
QUERIES = 64  # queries normalised at a time, at least; more if their matrix fits in SCRATCH
SCRATCH = 1 << 22  # floats
Chunk = tuple[int, Tensor, Tensor]  # first position, weights and biases of a range of the pool
TINY = 1e-30  # g must be positive even if a softmax underflows


@dataclass(frozen=True, kw_only=True, slots=True)
class Priority(Selection):
    """Keep classes by priority and weight them by the inverse of their chance to be kept.

    Args:
        score_queries: how many queries of a batch score the pool; None is all.
        floor: eps, the share of g that is spread evenly over the pool. It bounds the weight of
            a class that only the other queries score high; not used if all queries score.

    A temperature other than 1 makes g flatter (above) or sharper (below) than the g of least
    variance. The estimate of the partition sum is unbiased at any temperature.
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
        floor = 0.0 if given.complete else self.floor
        if given.native is not None:
            return native.priority(
                given.native,
                given.log_q,
                given.query,
                given.ids,
                given.target,
                temperature=given.temperature,
                noise=given.noise.contiguous(),
                floor=floor,
                keep=keep,
            )
        share = mean_share(given).mul_(1 - floor).add_(floor / len(given))
        share.clamp_(min=TINY)
        kept, threshold = largest(share / given.noise, keep)
        return kept, (threshold / share[kept]).clamp_(min=1.0).log_()


def mean_share(given: SelectionInput) -> Tensor:
    """(P,) softmax over the pool of every scoring query, averaged over these queries."""
    size, num_queries = len(given), given.query.shape[0]
    width = min(max(QUERIES, SCRATCH // size), num_queries)
    query = given.query if given.temperature == 1 else given.query / given.temperature
    if num_queries <= width:
        chunks: Iterable[Chunk] = (
            (s, *given.rows(s, min(s + CHUNK, size))) for s in range(0, size, CHUNK)
        )
    else:
        chunks = [(0, *given.rows(0, size))]  # read by several blocks of queries: gather once
    scratch = query.new_empty(width, size)
    share = query.new_zeros(size)
    for first in range(0, num_queries, width):
        last = min(first + width, num_queries)
        logit = scratch[: last - first]
        for start, weight, bias in chunks:
            here = slice(start, start + weight.shape[0])
            offset = bias - given.log_q[here]
            if given.temperature != 1:
                offset /= given.temperature
            torch.addmm(offset, query[first:last], weight.t(), out=logit[:, here])
        mask_hits(logit, given.ids, given.target[first:last])
        # a query with nothing but targets or -inf in the pool adds nothing, instead of NaN
        empty = logit.amax(dim=1, keepdim=True).isneginf()
        torch.softmax(logit, dim=1, out=logit)
        logit.masked_fill_(empty, 0.0)
        share += logit.sum(dim=0)
    return share.div_(num_queries)
