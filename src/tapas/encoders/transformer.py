"""A causal transformer over the items (SASRec; Kang and McAuley 2018).

Learned position embeddings; RMSNorm before attention and before the feed-forward network.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from tapas.encoders.base import Encoder, Places, check_dropout, drop, drop_at, init_weights
from tapas.errors import UsageError
from tapas.shapes import check_positive


class TransformerEncoder(Encoder):
    """`num_layers` blocks of causal self-attention and feed-forward, for up to `window` items."""

    def __init__(
        self,
        dim: int,
        *,
        window: int = 50,
        num_layers: int = 2,
        num_heads: int = 2,
        dropout: float = 0.0,
        seed: int = 0,
    ):
        super().__init__()
        self.dim = check_positive("dim", dim)
        self.window = check_positive("window", window)
        if dim % check_positive("num_heads", num_heads):
            raise UsageError(
                f"dim is {dim}, which is not divisible by num_heads={num_heads}. "
                "Make num_heads a divisor of dim."
            )
        self.dropout = check_dropout(dropout)
        self.place = nn.Parameter(torch.empty(window, dim, device="cpu"))
        self.blocks = nn.ModuleList(
            _Block(dim, num_heads) for _ in range(check_positive("num_layers", num_layers))
        )
        self.gain = nn.Parameter(torch.ones(dim, device="cpu"))
        init_weights(self, seed)

    def forward(
        self, x: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        self._check_width(x.shape[1])
        x = drop(x + self.place[: x.shape[1]].to(x.dtype), self.dropout, generator)
        for block in self.blocks:
            x = block(x, self.dropout, generator)
        return functional.rms_norm(x, (self.dim,), self.gain)

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
        self._check_width(places.width)
        if len(query_index) == len(rows):
            query_index = places.index
        place = self.place.to(rows.dtype).index_select(0, places.index % places.width)
        x = drop_at(rows + place, places.index, self.dropout, generator, places)
        *blocks, last = cast("list[_Block]", list(self.blocks))
        for block in blocks:
            x = block.at(x, places, places.index, self.dropout, generator)
        x = last.at(x, places, query_index, self.dropout, generator)
        return functional.rms_norm(x, (self.dim,), self.gain)

    def _check_width(self, width: int) -> None:
        if width > self.window:
            raise UsageError(
                f"x has {width} positions, but the encoder was built for {self.window}. "
                "Pass only the last ones, or build it with a larger window."
            )


class _Block(nn.Module):
    """x += attend(norm(x));  x += feed(norm(x))"""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.attend_gain = nn.Parameter(torch.ones(dim, device="cpu"))
        self.feed_gain = nn.Parameter(torch.ones(dim, device="cpu"))
        self.qkv = nn.Linear(dim, 3 * dim, device="meta").to_empty(device="cpu")
        self.out = nn.Linear(dim, dim, device="meta").to_empty(device="cpu")
        self.wide = nn.Linear(dim, 4 * dim, device="meta").to_empty(device="cpu")
        self.narrow = nn.Linear(4 * dim, dim, device="meta").to_empty(device="cpu")

    def forward(self, x: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
        batch, length, dim = x.shape
        normal = functional.rms_norm(x, (dim,), self.attend_gain)
        parts = self.qkv(normal).view(batch, length, 3, self.num_heads, dim // self.num_heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended = attended.transpose(1, 2).reshape(batch, length, dim)
        x = x + drop(self.out(attended), rate, generator)
        normal = functional.rms_norm(x, (dim,), self.feed_gain)
        return x + drop(self.narrow(functional.gelu(self.wide(normal))), rate, generator)

    def at(
        self,
        x: Tensor,
        places: Places,
        index: Tensor,
        rate: float,
        generator: torch.Generator | None,
    ) -> Tensor:
        """What `forward` gives at `index` (M,), for events `x` (N, D) without padding: (M, D)."""
        dim = x.shape[1]
        normal = functional.rms_norm(x, (dim,), self.attend_gain)
        if index is places.index:
            parts = self.qkv(normal)
            query, keys = parts[:, :dim], parts[:, dim:]
        else:
            chosen = places.find(index)
            keys = functional.linear(normal, self.qkv.weight[dim:], self.qkv.bias[dim:])
            normal = normal.index_select(0, chosen)
            query = functional.linear(normal, self.qkv.weight[:dim], self.qkv.bias[:dim])
            x = x.index_select(0, chosen)
        attended = attend(query, keys, places, index, self.num_heads)
        x = x + drop_at(self.out(attended), index, rate, generator, places)
        normal = functional.rms_norm(x, (dim,), self.feed_gain)
        wide = self.narrow(functional.gelu(self.wide(normal)))
        return x + drop_at(wide, index, rate, generator, places)


def attend(query: Tensor, keys: Tensor, places: Places, index: Tensor, num_heads: int) -> Tensor:
    """Causal attention of `query` (M, D) at `index` (M,) to the events of `places`: (M, D).

    `keys` (N, 2D) are their keys and values. Where few events query, the queries of a sequence
    are put side by side, with a mask in place of their order.
    """
    num_sequences, width = len(places.lengths), places.width
    sequence, time = index // width, index % width
    longest = int(places.lengths.max())
    count = torch.bincount(sequence, minlength=num_sequences)
    most = max(1, int(count.max()))
    is_causal = 2 * most > longest
    if is_causal:
        most, slot, mask = longest, time, None
    else:
        slot = torch.arange(len(index)) - (count.cumsum(0) - count)[sequence]
    slot = sequence * most + slot
    if not is_causal:  # empty slots may see the first event, or they would be nan
        seen = torch.zeros(num_sequences * most, dtype=time.dtype).index_copy(0, slot, time)
        mask = (torch.arange(longest) <= seen[:, None]).view(num_sequences, 1, most, longest)
    if longest < width:
        places = Places.of(places.lengths, longest)
    shape = (num_sequences, -1, num_heads, query.shape[1] // num_heads)
    padded = query.new_zeros(num_sequences * most, query.shape[1]).index_copy(0, slot, query)
    key, value = places.pad(keys).chunk(2, dim=2)
    attended = functional.scaled_dot_product_attention(
        padded.view(shape).transpose(1, 2),
        key.view(shape).transpose(1, 2),
        value.view(shape).transpose(1, 2),
        attn_mask=mask,
        is_causal=is_causal,
    )
    return attended.transpose(1, 2).reshape(padded.shape).index_select(0, slot)
