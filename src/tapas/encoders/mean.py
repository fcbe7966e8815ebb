"""The mean of the last items, followed by a linear layer: the paper's simplest encoder."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tapas.encoders.base import Encoder, Places, check_dropout, drop, drop_at, init_weights
from tapas.shapes import check_positive

FEW = 4  # events for each query; with fewer, the means at all positions are faster


class MeanEncoder(Encoder):
    """query_t = x̄ + W x̄ + b, where x̄ is the mean of the last `window` items up to t."""

    def __init__(self, dim: int, *, window: int = 50, dropout: float = 0.0, seed: int = 0):
        super().__init__()
        self.dim = check_positive("dim", dim)
        self.window = check_positive("window", window)
        self.dropout = check_dropout(dropout)
        self.mix = nn.Linear(dim, dim, device="meta").to_empty(device="cpu")
        init_weights(self, seed)

    def forward(
        self, x: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        mean = drop(self._means(x), lengths, self.dropout, generator)
        mixed: Tensor = self.mix(mean)
        return mean + mixed

    def queries(
        self,
        rows: Tensor,
        places: Places,
        query_index: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        few = FEW * len(query_index) <= len(rows) and places.width <= self.window
        if places.width <= self.window and places.are_ends(query_index):
            mean = sequence_means(rows, places.lengths)
        elif few and rows.is_cpu and not torch.is_autocast_enabled("cpu"):
            mean = means_so_far(rows, places, query_index)
        else:
            means = self._means(places.pad(rows))
            mean = means.flatten(0, 1).index_select(0, query_index)
        mean = drop_at(mean, places.find(query_index), len(rows), self.dropout, generator)
        mixed: Tensor = self.mix(mean)
        return mean + mixed

    def _means(self, x: Tensor) -> Tensor:
        """The mean of the last `window` items at every position, (B, T, D)."""
        length = x.shape[1]
        position = torch.arange(length, device=x.device)
        age = position[:, None] - position[None, :]  # of item s (column) at position t (row)
        inside = ((age >= 0) & (age < self.window)).to(x.dtype)
        return (inside / inside.sum(dim=1, keepdim=True)) @ x


def sequence_means(rows: Tensor, lengths: Tensor) -> Tensor:
    """The means (B, D) of B sequences with events `rows` (N, D); `lengths` (B,) are positive."""
    event = torch.arange(len(rows), device=rows.device)
    return nn.functional.embedding_bag(event, rows, lengths.cumsum(0) - lengths, mode="mean")


def means_so_far(rows: Tensor, places: Places, query_index: Tensor) -> Tensor:
    """The mean (Q, D) of all events of a sequence up to `query_index` (Q,), ascending."""
    found: Tensor = _MeansSoFar.apply(rows, places, query_index)  # type: ignore[no-untyped-call]
    return found


class _MeansSoFar(torch.autograd.Function):
    """Sums the events between queries, then these sums, in double precision.

    Bags of events end where a sequence ends or behind a query: B + Q of them, in order. The bag
    of query j in sequence b has number j + b, those of the sequence begin with the number of
    queries before it plus b, and the last one is behind all of its queries.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Places, query_index: Tensor) -> Tensor:
        num_sequences, num_queries = len(places.lengths), len(query_index)
        sequence = query_index // places.width
        ends = torch.cat([places.lengths.cumsum(0), places.find(query_index) + 1])
        bag = torch.arange(num_queries) + sequence
        begin = torch.arange(num_sequences) + torch.searchsorted(
            sequence, torch.arange(num_sequences)
        )
        bounds = torch.zeros(num_sequences + num_queries + 1, dtype=torch.int64)
        bounds[1:] = ends.sort().values
        sums = torch.embedding_bag(rows, torch.arange(len(rows)), bounds[:-1])[0]
        so_far = _cumulated(sums)
        count = (query_index % places.width + 1)[:, None]
        ctx.bag, ctx.begin, ctx.sequence, ctx.count = bag, begin, sequence, count
        ctx.sizes, ctx.num_rows = bounds.diff(), len(rows)
        total = so_far.index_select(0, bag + 1).sub_(so_far.index_select(0, begin[sequence]))
        return total.div_(count).to(rows.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        grad = grads[0]
        of_bags = grad.new_zeros(len(ctx.sizes), grad.shape[1])
        of_bags[ctx.bag] = grad / ctx.count
        so_far = _cumulated(of_bags)
        # of a bag: the queries from it to the end of its sequence
        end = torch.cat([ctx.begin[1:], ctx.begin.new_tensor([len(ctx.sizes)])])
        sequence = torch.repeat_interleave(end - ctx.begin, output_size=len(ctx.sizes))
        of_bags = so_far.index_select(0, end[sequence]).sub_(so_far[:-1]).to(grad.dtype)
        return of_bags.repeat_interleave(ctx.sizes, 0, output_size=ctx.num_rows), None, None


def _cumulated(x: Tensor) -> Tensor:
    """Sums of the first 0 .. N rows of `x` (N, D): (N + 1, D) in double precision."""
    sums = torch.zeros(len(x) + 1, x.shape[1], dtype=torch.float64)
    torch.cumsum(x, 0, dtype=torch.float64, out=sums[1:])
    return sums
