"""Item vectors and an encoder as one module without a table: what `torch.export` can write."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class QueryModule(nn.Module):
    """(B, T) items and (B,) lengths to (B, D) queries.

    `encoder(x (B, T, D), lengths)` gives (B, T, D); the state at the last item is the query.
    """

    weight: Tensor  # (C, D)

    def __init__(self, weight: Tensor, encoder: nn.Module):
        super().__init__()
        self.register_buffer("weight", weight.detach().float())
        self.encoder = encoder

    def forward(self, items: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(items.shape[1], device=items.device) < lengths[:, None]
        x = functional.embedding(items, self.weight) * real[:, :, None]
        states: Tensor = self.encoder(x, lengths)
        last = (lengths - 1)[:, None, None].expand(-1, 1, states.shape[2])
        return states.gather(1, last)[:, 0]
