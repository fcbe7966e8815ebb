"""A gated recurrent unit over the items (GRU4Rec; Hidasi et al. 2016)."""

import torch
from torch import Tensor, nn

from tapas.encoders.base import (
    Encoder,
    Places,
    check_dropout,
    drop,
    drop_at,
    init_weights,
    reorder,
)
from tapas.encoders.recurrence import TimeOrder, gru_layer
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
        states, _ = self.gru(drop(x, lengths, self.dropout, generator))
        out: Tensor = self.out(drop(states, lengths, self.dropout, generator))
        return out

    def queries(
        self,
        rows: Tensor,
        places: Places,
        query_index: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        if not rows.is_cpu or torch.is_autocast_enabled("cpu"):
            return super().queries(rows, places, query_index, generator=generator)
        times = TimeOrder.of(places)
        rows = drop_at(rows, None, len(rows), self.dropout, generator)
        states = reorder(rows, times.order, times.inverse)
        for layer in range(self.gru.num_layers):
            states = gru_layer(states, self.gru, layer, times)
        events = places.find(query_index)
        chosen = states.index_select(0, times.inverse[events])
        out: Tensor = self.out(drop_at(chosen, events, len(rows), self.dropout, generator))
        return out
