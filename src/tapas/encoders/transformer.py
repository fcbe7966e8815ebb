"""A causal transformer over the items (SASRec; Kang and McAuley 2018).

Learned position embeddings; RMSNorm before attention and before the feed-forward network.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tapas.encoders.base import Encoder, check_dropout, drop, init_weights
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
        if x.shape[1] > self.window:
            raise UsageError(
                f"x has {x.shape[1]} positions, but the encoder was built for {self.window}. "
                "Pass only the last ones, or build it with a larger window."
            )
        x = drop(x + self.place[: x.shape[1]].to(x.dtype), self.dropout, generator)
        for block in self.blocks:
            x = block(x, self.dropout, generator)
        return functional.rms_norm(x, (self.dim,), self.gain)


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
