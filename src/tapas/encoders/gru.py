"""A gated recurrent unit over the items (GRU4Rec; Hidasi et al. 2016)."""

import torch
from torch import Tensor, nn

from tapas.encoders.base import Encoder, check_dropout, drop, init_weights
from tapas.shapes import check_positive


class GRUEncoder(Encoder):
    """`num_layers` GRU layers of `hidden` units, then a linear layer back to `dim`."""

    def __init__(
        self,
        dim: int,
        *,
        hidden: int | None = None,
        num_layers: int = 1,
        dropout: float = 0.0,
        seed: int = 0,
    ):
        super().__init__()
        self.dim = check_positive("dim", dim)
        hidden = check_positive("hidden", dim if hidden is None else hidden)
        self.dropout = check_dropout(dropout)
        layers = check_positive("num_layers", num_layers)
        self.gru = nn.GRU(dim, hidden, layers, batch_first=True, device="meta").to_empty(
            device="cpu"
        )
        self.out = nn.Linear(hidden, dim, device="meta").to_empty(device="cpu")
        init_weights(self, seed)

    def forward(
        self, x: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        # padding comes after the sequence and cannot affect a causal network
        states, _ = self.gru(drop(x, self.dropout, generator))
        out: Tensor = self.out(drop(states, self.dropout, generator))
        return out
