"""The interface of sequence encoders, and functions that they share."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from tapas.errors import UsageError
from tapas.rng import stream


class Encoder(nn.Module, ABC):
    """Maps item vectors (B, T, D) to queries (B, T, D).

    Causal: the query at a position depends only on the vectors up to that position. Sequences
    are left-aligned; positions beyond `lengths` (B,) are padding, and their queries are
    meaningless. Initial weights depend only on `seed`, and dropout only on the `generator` that
    is passed, so that runs are reproducible. Without a generator there is no dropout.
    """

    dim: int

    @abstractmethod
    def forward(
        self, x: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the query at every position, (B, T, D)."""


def last_state(states: Tensor, lengths: Tensor) -> Tensor:
    """`states` (B, T, D) at the last item of each sequence, (B, D)."""
    position = (lengths - 1).clamp(min=0)
    return states[torch.arange(states.shape[0], device=states.device), position]


def init_weights(module: nn.Module, seed: int) -> None:
    """Initialise matrices uniformly with variance 1 / fan_in and biases with 0; gains stay 1."""
    for name, parameter in module.named_parameters():
        if parameter.dim() < 2:
            if not name.endswith("gain"):
                nn.init.zeros_(parameter)
            continue
        bound = math.sqrt(3 / parameter.shape[-1])
        draws = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        draws.uniform_(-bound, bound, generator=stream(seed, "encoder", name))
        parameter.data.copy_(draws)


def drop(x: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    """Dropout with draws from `generator`; without one, `x` is returned unchanged."""
    if not rate or generator is None:
        return x
    kept = torch.rand(x.shape, generator=generator, dtype=torch.float32, device="cpu") >= rate
    return x * kept.to(x.device, x.dtype).div_(1 - rate)


def check_dropout(rate: float) -> float:
    """Return `rate` as a float, or raise UsageError unless 0 <= rate < 1."""
    if not 0 <= rate < 1:
        raise UsageError(f"dropout must be at least 0 and below 1, got {rate!r}.")
    return float(rate)
