"""A causal transformer over the items (SASRec; Kang and McAuley 2018).

LayerNorm of the input, and after attention and after the feed-forward network of each block, as in
SASRec. Positions are distances: each head of attention adds a learned number for how far back an
item is, the same in all blocks (Shaw, Uszkoreit and Vaswani 2018; buckets as in T5).
"""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from tapas.encoders.base import (
    Encoder,
    Places,
    check_dropout,
    drop,
    drop_at,
    init_weights,
    reorder,
)
from tapas.encoders.packed import Group, Packed
from tapas.errors import UsageError
from tapas.shapes import check_positive

NEAR, BUCKETS = 8, 20  # distances below NEAR have a number each, longer ones four for each octave


DEVIATION = 0.02  # of initial weights, as BERT's: blocks start as little more than the input


class TransformerEncoder(Encoder):
    """`num_layers` blocks of causal self-attention and feed-forward, for any number of items."""

    def __init__(
        self,
        dim: int,
        *,
        num_layers: int = 2,
        num_heads: int = 2,
        dropout: float = 0.0,
        seed: int = 0,
    ):
        super().__init__()
        self.dim = check_positive("dim", dim)
        if dim % check_positive("num_heads", num_heads):
            raise UsageError(
                f"dim is {dim}, which is not divisible by num_heads={num_heads}. "
                "Make num_heads a divisor of dim."
            )
        self.dropout = check_dropout(dropout)
        self.norm = _Norm(dim)
        self.distance = nn.Parameter(torch.empty(num_heads, BUCKETS, device="cpu"))
        self.blocks = nn.ModuleList(
            _Block(dim, num_heads) for _ in range(check_positive("num_layers", num_layers))
        )
        init_weights(self, seed, deviation=DEVIATION)
        nn.init.zeros_(self.distance)

    def forward(
        self, x: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        x = drop(self.norm(x), lengths, self.dropout, generator)
        steps = torch.arange(x.shape[1], device=x.device)
        bias = self._bias(steps[:, None], steps)
        for block in self.blocks:
            x = block(x, lengths, bias, self.dropout, generator)
        return x

    def queries(
        self,
        rows: Tensor,
        places: Places,
        query_index: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        if not rows.is_cpu:
            return super().queries(rows, places, query_index, generator=generator)
        packed = Packed.of(places)
        x = drop_at(self.norm(rows), None, len(rows), self.dropout, generator)
        x = reorder(x, packed.order, packed.inverse)
        wanted = packed.inverse[places.find(query_index)]
        events = wanted.sort().values
        *blocks, last = cast("list[_Block]", list(self.blocks))
        for block in blocks:
            x = self._block(block, x, packed, None, generator)
        x = self._block(last, x, packed, None if len(events) == len(x) else events, generator)
        return x.index_select(0, torch.searchsorted(events, wanted))

    def _bias(self, query: Tensor, key: Tensor) -> Tensor:
        """What is added to scores of attention: (H, ...) for times that broadcast to (...).

        -inf where `key` is later than `query`.
        """
        back = query - key
        octaves = (back.clamp(min=1) / NEAR).log2()
        far = (NEAR + 4 * octaves).long().clamp(max=BUCKETS - 1)
        bucket = torch.where(back < NEAR, back.clamp(min=0), far)
        return self.distance[:, bucket].masked_fill(back < 0, -torch.inf)

    def _block(
        self,
        block: "_Block",
        x: Tensor,
        packed: Packed,
        events: Tensor | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        """What `block` gives for `events` (M,) of those in `x` (N, D), ascending: (M, D).

        None stands for all events.
        """
        dim, size = self.dim, len(x)
        if events is None:
            parts = block.qkv(x)
            query, keys = parts[:, :dim], parts[:, dim:]
        else:
            keys = functional.linear(x, block.qkv.weight[dim:], block.qkv.bias[dim:])
            x = x.index_select(0, events)
            query = functional.linear(x, block.qkv.weight[:dim], block.qkv.bias[:dim])
        attended = self._attend(query, keys, packed, events, block.num_heads)
        drawn = packed.order if events is None else packed.order[events]
        x = block.attend_norm(
            x + drop_at(block.out(attended), drawn, size, self.dropout, generator)
        )
        fed = drop_at(block.feed(x), drawn, size, self.dropout, generator)
        return cast(Tensor, block.feed_norm(x + fed))

    def _attend(
        self,
        query: Tensor,
        keys: Tensor,
        packed: Packed,
        events: Tensor | None,
        num_heads: int,
    ) -> Tensor:
        """Causal attention of `query` (M, D) at `events` (M,) to all events: (M, D).

        `keys` (N, 2D) are the keys and values of all events. Groups of sequences of like length
        are attended to one after the other.
        """
        found = []
        for group in packed.groups:
            here = keys[group.events]
            if events is None:
                asked, time, row = query[group.events], group.time, group.row
            else:
                bounds = torch.tensor([group.events.start, group.events.stop])
                first, last = torch.searchsorted(events, bounds).tolist()
                chosen = events[first:last] - group.events.start
                asked, time, row = query[first:last], group.time[chosen], group.row[chosen]
            if len(asked):
                found.append(self._attend_group(asked, time, row, here, group, num_heads))
        return torch.cat(found) if found else query

    def _attend_group(
        self,
        query: Tensor,
        time: Tensor,
        row: Tensor,
        keys: Tensor,
        group: Group,
        num_heads: int,
    ) -> Tensor:
        """Attention of `query` (M, D), at `time` (M,) of the sequences `row` (M,) of `group`.

        Where few events query, the queries of a sequence are put side by side.
        """
        size, width, dim = group.num_sequences, group.width, query.shape[1]
        steps = torch.arange(width)
        count = torch.bincount(row, minlength=size)
        most = int(count.max())
        if 2 * most > width:
            most, slot = width, row * width + time
            bias = self._bias(steps[:, None], steps)[:, None]
        else:
            slot = row * most + torch.arange(len(row)) - (count.cumsum(0) - count)[row]
            # empty slots may see the first event, or they would be nan
            seen = torch.zeros(size * most, dtype=time.dtype).index_copy(0, slot, time)
            bias = self._bias(seen.view(size, most, 1), steps)

        def of_heads(rows: Tensor, places: Tensor, length: int) -> Tensor:
            """`rows` (K, D) at `places` (K,) of (B, length), as (H, B, length, D/H)."""
            if len(rows) < size * length:
                rows = rows.new_zeros(size * length, dim).index_copy(0, places, rows)
            return rows.view(size, length, num_heads, dim // num_heads).permute(2, 0, 1, 3)

        place = group.row * width + group.time
        key, value = (of_heads(part, place, width) for part in keys.chunk(2, dim=1))
        score = of_heads(query / math.sqrt(dim // num_heads), slot, most) @ key.transpose(2, 3)
        attended = (score + bias.to(score.dtype)).softmax(dim=3) @ value
        return attended.permute(1, 2, 0, 3).reshape(size * most, dim).index_select(0, slot)


class _Norm(nn.Module):
    """LayerNorm, whose `gain` starts at 1."""

    def __init__(self, dim: int):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim, device="cpu"))
        self.offset = nn.Parameter(torch.zeros(dim, device="cpu"))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.gain.shape, self.gain, self.offset)


class _Block(nn.Module):
    """x = norm(x + attend(x));  x = norm(x + feed(x))"""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.attend_norm, self.feed_norm = _Norm(dim), _Norm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, device="meta").to_empty(device="cpu")
        self.out = nn.Linear(dim, dim, device="meta").to_empty(device="cpu")
        self.wide = nn.Linear(dim, 4 * dim, device="meta").to_empty(device="cpu")
        self.narrow = nn.Linear(4 * dim, dim, device="meta").to_empty(device="cpu")

    def feed(self, x: Tensor) -> Tensor:
        fed: Tensor = self.narrow(functional.gelu(self.wide(x)))
        return fed

    def forward(
        self,
        x: Tensor,
        lengths: Tensor,
        bias: Tensor,
        rate: float,
        generator: torch.Generator | None,
    ) -> Tensor:
        batch, length, dim = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.num_heads, dim // self.num_heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bias.to(query.dtype)
        )
        attended = attended.transpose(1, 2).reshape(batch, length, dim)
        x = self.attend_norm(x + drop(self.out(attended), lengths, rate, generator))
        return cast(Tensor, self.feed_norm(x + drop(self.feed(x), lengths, rate, generator)))
