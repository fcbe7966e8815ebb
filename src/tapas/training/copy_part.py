"""The copy part of a model: some of the probability is copied from the user's history.

    p(y | x) = (1 - g) p_softmax(y | x) + g * sum of a_t over the past events t with item y
    a        = softmax over past events of  age(events since t) + x_t . K query / √D + rate(item_t)
    g        = sigmoid(w . query + b)

The softmax may be sampled by any method that estimates its probabilities; the paper's rule `top`
does not. Ranking stays exact: the best k classes are among the best k of the softmax and the
items of the history.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tapas.optim import RowUpdate
from tapas.shapes import check_positive
from tapas.tables import ClassTable, LocalTable
from tapas.tables.exhaustive import merge_topk

AGE_SCALE = 10  # speeds up the few age parameters, which are shared by all events


@dataclass(frozen=True, slots=True)
class CopyDistribution:
    """The copy distribution of Q queries over the past items of their histories."""

    items: Tensor  # (Q, T) int64; -1 for events that are not in the past
    share: Tensor  # (Q, T) the weights a, which sum to 1; 0 for events that are not in the past
    gate: Tensor  # (Q,) logits of g = sigmoid(gate)

    def log_prob(self, softmax: Tensor, ids: Tensor) -> Tensor:
        """Log-probability (Q, L) of `ids` (Q, L) whose softmax log-probability is `softmax`."""
        copied = [(self.share * (self.items == one[:, None])).sum(1) for one in ids.unbind(1)]
        return self._mix(softmax, torch.stack(copied, dim=1))

    def topk(
        self,
        best: Tensor,
        log_prob: Callable[[Tensor], Tensor],
        num_classes: int,
        exclude: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids of the k best classes, (Q, k) each; see `Head.topk`.

        Args:
            best: (Q, k) the k best classes of the softmax without `exclude`.
            log_prob: log-probabilities of the softmax, (Q, L) for ids (Q, L).
        """
        past, copied = self._distinct()
        if exclude is not None:
            past = past.masked_fill(_within(past, exclude.to(past.device), num_classes), -1)
        others = best.masked_fill(_within(best, past, num_classes), -1)
        ids = torch.cat([others, past], dim=1)
        score = self._mix(
            log_prob(ids.clamp(min=0)),
            torch.cat([torch.zeros_like(others, dtype=copied.dtype), copied], 1),
        )
        score, ids = merge_topk(score.masked_fill(ids < 0, -torch.inf), ids, best.shape[1])
        return score, ids.masked_fill(score == -torch.inf, -1)

    def _mix(self, softmax: Tensor, copied: Tensor) -> Tensor:
        tiny = torch.finfo(copied.dtype).tiny  # log(0) would make gradients NaN
        log_copied = copied.clamp(min=tiny).log().masked_fill(copied == 0, -torch.inf)
        gate = self.gate[:, None]
        return torch.logaddexp(
            functional.logsigmoid(-gate) + softmax, functional.logsigmoid(gate) + log_copied
        )

    def _distinct(self) -> tuple[Tensor, Tensor]:
        """Distinct past items (Q, T), padded with -1, and their summed shares (Q, T)."""
        items, order = self.items.sort(dim=1, descending=True)
        begins = torch.ones_like(items)
        begins[:, 1:] = items[:, 1:] != items[:, :-1]
        slot = begins.cumsum(1) - 1
        distinct = torch.full_like(items, -1).scatter_(1, slot, items)
        share = self.share.gather(1, order)
        return distinct, torch.zeros_like(share).scatter_add_(1, slot, share)


class CopyPart(nn.Module):
    """Learns which past events to copy, and how much probability to copy.

    `age` is piecewise linear between learned values at 1, 2, 4, 8, ... events back. `rate` is a
    learned number for each class, in a table with dim 1; a table that is passed should start at 0.
    All parameters start at 0: at first items are copied in proportion to their frequency within
    the history, with g = 1/2. Events further back than `history` count as `history` events back.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        history: int,
        row_optimizer: RowUpdate | None = None,
        seed: int = 0,
        rate: ClassTable | None = None,
    ):
        super().__init__()
        self.history = check_positive("history", history)
        knots = math.floor(math.log2(history)) + 2
        self.age = nn.Parameter(torch.zeros(knots, device="cpu"))
        self.key = nn.Parameter(torch.zeros(dim, dim, device="cpu"))
        self.gate = nn.Parameter(torch.zeros(dim, device="cpu"))
        self.gate_bias = nn.Parameter(torch.zeros(1, device="cpu"))
        if rate is None:
            rate = LocalTable(num_classes, 1, row_optimizer=row_optimizer, bias=False, seed=seed)
            zero_rows(rate)
        self.rate = rate

    def forward(
        self, query: Tensor, x: Tensor, items: Tensor, query_index: Tensor
    ) -> CopyDistribution:
        """The copy distribution of `query` (Q, D).

        Args:
            x: (B, T, D) vectors of the events, 0 for padding.
            items: (B, T) their classes.
            query_index: (Q,) ascending; index of each query in the flattened (B*T,) events. The
                event at that index and those before it in the same row are the query's past.
        """
        width = items.shape[1]
        row, last = query_index // width, query_index % width
        back = last[:, None] - torch.arange(width, device=items.device)
        past = back >= 0
        score = self._matches(query @ self.key, x, row) / math.sqrt(x.shape[2])
        score = score + self._ages(width)[back.clamp(min=0)]
        score = score + self._rates(items, row, last).index_select(0, row)
        return CopyDistribution(
            items=items.index_select(0, row).masked_fill(~past, -1),
            share=score.masked_fill(~past, -torch.inf).softmax(dim=1),
            gate=query @ self.gate + self.gate_bias,
        )

    def _matches(self, wanted: Tensor, x: Tensor, row: Tensor) -> Tensor:
        """(Q, T) products of `wanted` (Q, D) with the events of its row, without a (Q, T, D)."""
        num_rows, width, dim = x.shape
        count = torch.bincount(row, minlength=num_rows)
        most = int(count.max()) if num_rows else 0
        slot = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        slot = slot + row * most
        padded = wanted.new_zeros(num_rows * most, dim).index_copy(0, slot, wanted)
        match = padded.view(num_rows, most, dim) @ x.transpose(1, 2)
        return match.view(num_rows * most, width).index_select(0, slot)

    def _ages(self, width: int) -> Tensor:
        """(T,) scores of events 0 to T-1 back; constant beyond `history`."""
        events = torch.arange(1, width + 1, device=self.age.device).clamp(max=self.history)
        log_age = events.float().log2()
        knot = log_age.long().clamp(max=len(self.age) - 2)
        return AGE_SCALE * torch.lerp(self.age[knot], self.age[knot + 1], log_age - knot)

    def _rates(self, items: Tensor, row: Tensor, last: Tensor) -> Tensor:
        """(B, T) rates of `items` in the past of some query; no other row is read."""
        num_rows, width = items.shape
        end = last.new_full((num_rows,), -1).scatter_reduce(0, row, last, "amax")
        read = (torch.arange(width, device=items.device) <= end[:, None]).view(-1).nonzero()[:, 0]
        rate = self.rate.lookup(items.reshape(-1)[read])[:, 0]
        return rate.new_zeros(num_rows * width).index_copy(0, read, rate).view(num_rows, width)


def _within(ids: Tensor, others: Tensor, num_classes: int) -> Tensor:
    """(Q, N) True where `ids` (Q, N) occur in the same row of `others` (Q, M); -1 is padding."""
    row = num_classes * torch.arange(len(ids), device=ids.device)[:, None]
    return torch.isin(row + ids, (row + others)[others >= 0]) & (ids >= 0)


@torch.no_grad()
def zero_rows(table: ClassTable) -> None:
    """Set the rows of `table` that this process keeps to 0."""
    for name, rows in table.state_dict().items():
        if name == "weight":
            rows.zero_()
