"""The mean of the last items, followed by a linear layer: the paper's simplest encoder."""

import torch
from torch import Tensor, nn

from tapas.encoders.base import Encoder, check_dropout, drop, init_weights
from tapas.shapes import check_positive


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
        length = x.shape[1]
        position = torch.arange(length, device=x.device)
        age = position[:, None] - position[None, :]  # of item s (column) at position t (row)
        inside = ((age >= 0) & (age < self.window)).to(x.dtype)
        mean = (inside / inside.sum(dim=1, keepdim=True)) @ x
        mean = drop(mean, self.dropout, generator)
        mixed: Tensor = self.mix(mean)
        return mean + mixed
