"""The interface of sequence encoders, and functions that they share."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from tapas.errors import UsageError
from tapas.rng import stream


@dataclass(frozen=True, slots=True)
class Places:
    """Where the N events of B sequences are in a matrix (B, T) that is padded at the end."""

    lengths: Tensor  # (B,) events of each sequence, which sum to N
    width: int  # T
    index: Tensor  # (N,) ascending: index of each event in the flattened (B*T,) matrix

    @classmethod
    def of(cls, lengths: Tensor, width: int) -> Self:
        """The places of sequences of `lengths` (B,) in a matrix of `width` T.

        >>> Places.of(torch.tensor([2, 1]), 3).index
        tensor([0, 1, 3])
        """
        real = torch.arange(width, device=lengths.device) < lengths[:, None]
        return cls(lengths, width, real.view(-1).nonzero()[:, 0])

    @property
    def size(self) -> int:
        """B*T, the size of the flattened matrix."""
        return len(self.lengths) * self.width

    def pad(self, rows: Tensor) -> Tensor:
        """`rows` (N, D) of the events as (B, T, D), with 0 for padding."""
        if len(rows) < self.size:
            rows = rows.new_zeros(self.size, rows.shape[1]).index_copy(0, self.index, rows)
        return rows.view(len(self.lengths), self.width, rows.shape[1])

    def are_ends(self, query_index: Tensor) -> bool:
        """Whether `query_index` (Q,) of the flattened matrix is the end of each sequence."""
        if len(query_index) != len(self.lengths):
            return False
        begin = torch.arange(0, self.size, self.width, device=self.lengths.device)
        return bool((begin + self.lengths - 1 == query_index).all())

    def find(self, query_index: Tensor) -> Tensor:
        """Which of the N events are at `query_index` (Q,) of the flattened matrix, (Q,)."""
        if len(self.index) == self.size:
            return query_index
        return torch.searchsorted(self.index, query_index)


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

    def queries(
        self,
        rows: Tensor,
        places: Places,
        query_index: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The queries (Q, D) that `forward` gives at `query_index`, for training.

        `rows` (N, D) are the vectors of the events at `places`, and `query_index` (Q,) is
        ascending, in the flattened (B*T,) matrix of places. Encoders override this where they
        can leave out padding, or positions that do not predict; up to rounding, queries,
        gradients and dropout are the same.
        """
        states: Tensor = self(places.pad(rows), places.lengths, generator=generator)
        return states.flatten(0, 1).index_select(0, query_index)


def last_state(states: Tensor, lengths: Tensor) -> Tensor:
    """`states` (B, T, D) at the last item of each sequence, (B, D)."""
    position = (lengths - 1).clamp(min=0)
    return states[torch.arange(states.shape[0], device=states.device), position]


def latest(items: Tensor, lengths: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The last `most` of the first `lengths` (B,) items of each row of `items` (B, T).

    >>> latest(torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([3, 1]), 2)
    (tensor([[2, 3],
            [4, 0]]), tensor([2, 1]))
    """
    if items.shape[1] <= most:
        return items, lengths
    first = (lengths - most).clamp(min=0)
    index = first[:, None] + torch.arange(most, device=items.device)
    return items.gather(1, index), lengths.clamp(max=most)


def init_weights(module: nn.Module, seed: int, *, deviation: float | None = None) -> None:
    """Initialise matrices uniformly and biases with 0; gains stay 1.

    The standard deviation of matrices is `deviation`, by default 1 / sqrt(fan_in).
    """
    for name, parameter in module.named_parameters():
        if parameter.dim() < 2:
            if not name.endswith("gain"):
                nn.init.zeros_(parameter)
            continue
        bound = math.sqrt(3) * (deviation or 1 / math.sqrt(parameter.shape[-1]))
        draws = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        draws.uniform_(-bound, bound, generator=stream(seed, "encoder", name))
        parameter.data.copy_(draws)


def drop(x: Tensor, lengths: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    """Dropout of `x` (B, T, D) with draws from `generator`, one for each number of an event.

    Padding, what is beyond `lengths` (B,), becomes 0. Without a generator `x` is unchanged.
    """
    if not rate or generator is None:
        return x
    places = Places.of(lengths, x.shape[1])
    kept = _kept(len(places.index), x.shape[2], rate, generator).to(x.device, x.dtype)
    return x * places.pad(kept).div(1 - rate)


def drop_at(
    x: Tensor,
    events: Tensor | None,
    num_events: int,
    rate: float,
    generator: torch.Generator | None,
) -> Tensor:
    """What `drop` does to `events` (M,) of N = `num_events`, whose rows are `x` (M, D).

    None stands for all events in their order.
    """
    if not rate or generator is None:
        return x
    kept = _kept(num_events, x.shape[1], rate, generator)
    if events is not None:
        kept = kept.index_select(0, events)
    return x * kept.to(x.device, x.dtype).div_(1 - rate)


def _kept(num_events: int, dim: int, rate: float, generator: torch.Generator) -> Tensor:
    """(N, D) which numbers of all events stay."""
    shape = (num_events, dim)
    return torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu") >= rate


def reorder(rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """`rows[order]` for a permutation `order` (N,) and its `inverse` (N,)."""
    found: Tensor = _Reorder.apply(rows, order, inverse)  # type: ignore[no-untyped-call]
    return found


class _Reorder(torch.autograd.Function):
    """Without the zeros and sums that the gradient of index_select needs for repeated rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.order, ctx.inverse = order, inverse
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return reorder(grads[0], ctx.inverse, ctx.order), None, None


def check_dropout(rate: float) -> float:
    """Return `rate` as a float, or raise UsageError unless 0 <= rate < 1."""
    if not 0 <= rate < 1:
        raise UsageError(f"dropout must be at least 0 and below 1, got {rate!r}.")
    return float(rate)
