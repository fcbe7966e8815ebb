"""What was taken before, offered again: a share of the probability is copied from the history.

    p(y | x) = (1 - g) p_softmax(y | x) + g * sum of a_t over the past events t with item y
    a        = softmax over past events of  age(events since t) + x_t . K query / √D + rate(item_t)
    g        = sigmoid(w . query + b)

The softmax may be estimated in any way that estimates its probabilities, which the paper's
rule does not. Ranking stays exact: the best k are among the best k of the softmax and the
items of the history.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tapas.heads import Head
from tapas.optim import RowUpdate
from tapas.shapes import check_positive
from tapas.tables import ClassTable, LocalTable
from tapas.tables.exhaustive import merge_topk

AGE_PACE = 10  # ages are few and shared by all events: they move so much faster than an encoder


@dataclass(frozen=True, slots=True)
class CopyDistribution:
    """What their own past offers to Q queries."""

    items: Tensor  # (Q, T) int64; -1 for what is not past
    share: Tensor  # (Q, T) a, which sums to 1; 0 for what is not past
    gate: Tensor  # (Q,) g = sigmoid(gate)

    def log_prob(self, softmax: Tensor, ids: Tensor) -> Tensor:
        """log p of `ids` (Q, L), of which the softmax alone says `softmax` (Q, L)."""
        copied = [(self.share * (self.items == one[:, None])).sum(1) for one in ids.unbind(1)]
        return self._mix(softmax, torch.stack(copied, dim=1))

    def topk(
        self, head: Head, query: Tensor, k: int, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The k best classes: log p and ids, (Q, k) each, else as `head.top`."""
        _, best = head.topk(query, k, exclude=exclude)
        past, copied = self._distinct()
        if exclude is not None:
            past = past.masked_fill(_within(past, exclude.to(past.device), head.num_classes), -1)
        best = best.masked_fill(_within(best, past, head.num_classes), -1)
        ids = torch.cat([best, past], dim=1)
        softmax = head.log_prob(query, ids.clamp(min=0))
        score = self._mix(
            softmax, torch.cat([torch.zeros_like(best, dtype=copied.dtype), copied], 1)
        )
        score, ids = merge_topk(score.masked_fill(ids < 0, -torch.inf), ids, k)
        return score, ids.masked_fill(score == -torch.inf, -1)

    def _mix(self, softmax: Tensor, copied: Tensor) -> Tensor:
        tiny = torch.finfo(copied.dtype).tiny  # the slope of log at 0 would be NaN times 0
        log_copied = copied.clamp(min=tiny).log().masked_fill(copied == 0, -torch.inf)
        gate = self.gate[:, None]
        return torch.logaddexp(
            functional.logsigmoid(-gate) + softmax, functional.logsigmoid(gate) + log_copied
        )

    def _distinct(self) -> tuple[Tensor, Tensor]:
        """Every item of a past once, (Q, T), -1 behind them, and its summed share (Q, T)."""
        items, order = self.items.sort(dim=1, descending=True)
        begins = torch.ones_like(items)
        begins[:, 1:] = items[:, 1:] != items[:, :-1]
        slot = begins.cumsum(1) - 1
        distinct = torch.full_like(items, -1).scatter_(1, slot, items)
        share = self.share.gather(1, order)
        return distinct, torch.zeros_like(share).scatter_add_(1, slot, share)


class CopyPart(nn.Module):
    """Learns which past events to copy, and how often to copy at all.

    `age` is a line through learned numbers at 1, 2, 4, 8, ... events back, `rate` a learned
    number for each class, in a table of one dimension that may be passed. All start at 0, in a
    table that is passed by its maker, so that at first what was taken most often within
    `history` events is copied most, with g = 1/2.
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
            start_at_zero(rate)
        self.rate = rate

    def forward(self, query: Tensor, x: Tensor, items: Tensor, places: Tensor) -> CopyDistribution:
        """What `query` (Q, D) may copy.

        Args:
            x:      (B, T, D) vectors of the events, 0 behind the end of a row.
            items:  (B, T) their classes.
            places: (Q,) rising; where in the flattened (B*T,) each query stands. Events up to
                its own are its past.
        """
        width = items.shape[1]
        row, last = places // width, places % width
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
        """(Q, T) of each of `wanted` (Q, D) with the events of its row; no (Q, T, D) is made."""
        num_rows, width, dim = x.shape
        count = torch.bincount(row, minlength=num_rows)
        most = int(count.max()) if num_rows else 0
        slot = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        slot = slot + row * most
        padded = wanted.new_zeros(num_rows * most, dim).index_copy(0, slot, wanted)
        match = padded.view(num_rows, most, dim) @ x.transpose(1, 2)
        return match.view(num_rows * most, width).index_select(0, slot)

    def _ages(self, width: int) -> Tensor:
        """(T,) for 0 to T-1 events back; what is older than `history` is as old as that."""
        events = torch.arange(1, width + 1, device=self.age.device).clamp(max=self.history)
        place = events.float().log2()
        knot = place.long().clamp(max=len(self.age) - 2)
        return AGE_PACE * torch.lerp(self.age[knot], self.age[knot + 1], place - knot)

    def _rates(self, items: Tensor, row: Tensor, last: Tensor) -> Tensor:
        """(B, T) of `items` that are the past of some query; no other row is touched."""
        num_rows, width = items.shape
        end = last.new_full((num_rows,), -1).scatter_reduce(0, row, last, "amax")
        read = (torch.arange(width, device=items.device) <= end[:, None]).view(-1).nonzero()[:, 0]
        rate = self.rate.lookup(items.reshape(-1)[read])[:, 0]
        return rate.new_zeros(num_rows * width).index_copy(0, read, rate).view(num_rows, width)


def _within(ids: Tensor, others: Tensor, num_classes: int) -> Tensor:
    """(Q, N) True where an id of `ids` (Q, N) is in the same row of `others` (Q, M); -1 pads."""
    row = num_classes * torch.arange(len(ids), device=ids.device)[:, None]
    return torch.isin(row + ids, (row + others)[others >= 0]) & (ids >= 0)


@torch.no_grad()
def start_at_zero(table: ClassTable) -> None:
    """The rows that are kept here."""
    for name, rows in table.state_dict().items():
        if name == "weight":
            rows.zero_()
