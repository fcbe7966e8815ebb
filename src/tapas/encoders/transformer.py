"""A causal transformer over the items (SASRec; Kang and McAuley 2018).

LayerNorm of the input, and after attention and after the feed-forward network of each block, as in
SASRec. Positions are distances: each head of attention adds a learned number for how far back an
item is, the same in all blocks (Shaw, Uszkoreit and Vaswani 2018; buckets as in T5).
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from tapas.encoders.base import Encoder, Places, check_dropout, drop, drop_at, init_weights
from tapas.errors import UsageError
from tapas.shapes import check_positive

NEAR, BUCKETS = 8, 20  # distances below NEAR have a number each, longer ones four for each octave


ROUND = 16  # lengths of histories in a batch are rounded up to, so that its memory is used again
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
        x = drop(self.norm(x), self.dropout, generator)
        steps = torch.arange(x.shape[1], device=x.device)
        bias = self._bias(steps[:, None], steps)
        for block in self.blocks:
            x = block(x, bias, self.dropout, generator)
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
        if len(query_index) == len(rows):
            query_index = places.index
        x = drop_at(self.norm(rows), places.index, self.dropout, generator, places)
        *blocks, last = cast("list[_Block]", list(self.blocks))
        for block in blocks:
            x = self._block(block, x, places, places.index, generator)
        return self._block(last, x, places, query_index, generator)

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
        places: Places,
        index: Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """What `block` gives at `index` (M,), for events `x` (N, D) without padding: (M, D)."""
        dim = self.dim
        if index is places.index:
            parts = block.qkv(x)
            query, keys = parts[:, :dim], parts[:, dim:]
        else:
            chosen = places.find(index)
            keys = functional.linear(x, block.qkv.weight[dim:], block.qkv.bias[dim:])
            x = x.index_select(0, chosen)
            query = functional.linear(x, block.qkv.weight[:dim], block.qkv.bias[:dim])
        attended = self._attend(query, keys, places, index, block.num_heads)
        x = block.attend_norm(
            x + drop_at(block.out(attended), index, self.dropout, generator, places)
        )
        fed = drop_at(block.feed(x), index, self.dropout, generator, places)
        return cast(Tensor, block.feed_norm(x + fed))

    def _attend(
        self, query: Tensor, keys: Tensor, places: Places, index: Tensor, num_heads: int
    ) -> Tensor:
        """Causal attention of `query` (M, D) at `index` (M,) to the events of `places`: (M, D).

        `keys` (N, 2D) are their keys and values. Where few events query, the queries of a sequence
        are put side by side.
        """
        num_sequences, width = len(places.lengths), places.width
        sequence, time = index // width, index % width
        longest = min(width, ROUND * -(-int(places.lengths.max()) // ROUND))
        count = torch.bincount(sequence, minlength=num_sequences)
        most = max(1, int(count.max()))
        steps = torch.arange(longest)
        if 2 * most > longest:
            most, slot = longest, sequence * longest + time
            bias = self._bias(steps[:, None], steps)
        else:
            slot = torch.arange(len(index)) - (count.cumsum(0) - count)[sequence]
            slot = sequence * most + slot
            # empty slots may see the first event, or they would be nan
            seen = torch.zeros(num_sequences * most, dtype=time.dtype).index_copy(0, slot, time)
            bias = self._bias(seen.view(num_sequences, most, 1), steps).transpose(0, 1)
        if longest < width:
            places = Places.of(places.lengths, longest)
        shape = (num_sequences, -1, num_heads, query.shape[1] // num_heads)
        padded = query.new_zeros(num_sequences * most, query.shape[1]).index_copy(0, slot, query)
        key, value = places.pad(keys).chunk(2, dim=2)
        attended = functional.scaled_dot_product_attention(
            padded.view(shape).transpose(1, 2),
            key.view(shape).transpose(1, 2),
            value.view(shape).transpose(1, 2),
            attn_mask=bias.to(query.dtype),
        )
        return attended.transpose(1, 2).reshape(padded.shape).index_select(0, slot)


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
        self, x: Tensor, bias: Tensor, rate: float, generator: torch.Generator | None
    ) -> Tensor:
        batch, length, dim = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.num_heads, dim // self.num_heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bias.to(query.dtype)
        )
        attended = attended.transpose(1, 2).reshape(batch, length, dim)
        x = self.attend_norm(x + drop(self.out(attended), rate, generator))
        return cast(Tensor, self.feed_norm(x + drop(self.feed(x), rate, generator)))
