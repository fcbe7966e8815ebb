"""What every sequence encoder promises."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from tapas.errors import UsageError
from tapas.rng import stream


class Encoder(nn.Module, ABC):
    """Item vectors (B, T, D) in, queries (B, T, D) out.

    Causal: the query at a position depends on the vectors up to it and on nothing after it.
    Sequences stand at the left of their row; what follows their `lengths` (B,) is padding,
    whose queries mean nothing. Weights start from `seed` alone, dropout draws from the
    `generator` passed, so that a run can be repeated. Without a generator nothing is
    dropped.
    """

    dim: int

    @abstractmethod
    def forward(
        self, x: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The query at every position."""


def last_state(states: Tensor, lengths: Tensor) -> Tensor:
    """(B, D) of `states` (B, T, D) at the last item of each row."""
    place = (lengths - 1).clamp(min=0)
    return states[torch.arange(states.shape[0], device=states.device), place]


def start_weights(module: nn.Module, seed: int) -> None:
    """Uniform with the variance of one over the fan-in; vectors 0, gains stay 1."""
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
    """Zero each number with chance `rate` and scale the others up; nothing at no generator."""
    if not rate or generator is None:
        return x
    kept = torch.rand(x.shape, generator=generator, dtype=torch.float32, device="cpu") >= rate
    return x * kept.to(x.device, x.dtype).div_(1 - rate)


def check_dropout(rate: float) -> float:
    if not 0 <= rate < 1:
        raise UsageError(f"dropout must be at least 0 and below 1, got {rate!r}.")
    return float(rate)
