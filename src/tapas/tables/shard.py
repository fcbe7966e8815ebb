"""`Shard`: the rows of one rank or server, and `TableSpec`, which all shards of a table share."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from tapas.optim.row_updates import RowUpdate
from tapas.rng import stream
from tapas.tables.local import LocalTable
from tapas.tables.placement import Placement, RowRange

NUMBERS_PER_BLOCK = 1 << 22  # random numbers drawn at a time


class Shard(LocalTable):
    """The rows of shard `number` as a table whose ids are positions in the shard, 0 .. N-1.

    They start as the same rows of a `LocalTable` with all classes: each shard draws the numbers
    of all shards, block by block, and keeps its rows.
    """

    def __init__(
        self,
        table_placement: Placement,
        number: int,
        dim: int,
        *,
        row_optimizer: RowUpdate | None,
        dtype: torch.dtype,
        bias: bool | Tensor,
        device: torch.device | str | None,
    ):
        self.table_placement, self.number = table_placement, number
        super().__init__(
            table_placement.size(number),
            dim,
            row_optimizer=row_optimizer,
            dtype=dtype,
            bias=bias,
            seed=table_placement.seed,
            device=device,
        )
        # otherwise all shards would round bfloat16 rows by the same numbers
        self.seed = stream(table_placement.seed, "shard", number).initial_seed()

    @property
    def row_range(self) -> RowRange:
        return RowRange(self.table_placement, self.number)

    def init_rows(self, weight: Tensor) -> None:
        bound, generator = 1 / math.sqrt(self.dim), stream(self.seed, "rows")
        first, last = (
            self.table_placement.start(self.number),
            self.table_placement.start(self.number + 1),
        )
        step = max(1, NUMBERS_PER_BLOCK // self.dim)
        for start in range(0, self.table_placement.num_classes, step):
            stop = min(start + step, self.table_placement.num_classes)
            block = torch.empty(stop - start, self.dim, dtype=weight.dtype, device="cpu")
            block.uniform_(-bound, bound, generator=generator)
            position = self.table_placement.permute(torch.arange(start, stop, device="cpu"))
            mine = (position >= first) & (position < last)
            weight[position[mine] - first] = block[mine]


def load_rows(
    rows: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    prefix: str,
    *,
    missing: list[str],
    errors: list[str],
) -> None:
    """Copy `state` into `rows`; `missing` and `errors` are those of `load_state_dict`."""
    for name, kept in rows.items():
        given = state.get(prefix + name)
        if given is None:
            missing.append(prefix + name)
        elif given.shape != kept.shape:
            errors.append(
                f"{prefix}{name} has shape {tuple(given.shape)}; this rank keeps "
                f"{tuple(kept.shape)}: load what the same rank saved, of the same number of ranks"
            )
        else:
            kept.copy_(given)


class TableSpec(NamedTuple):
    """The settings that all shards of a table share, except for initial biases."""

    num_classes: int
    dim: int
    num_shards: int
    row_optimizer: RowUpdate
    placement: str = "random"
    seed: int = 0
    dtype: torch.dtype = torch.float32
    has_bias: bool = True
    row_scale: float = 1.0  # what initial rows are multiplied by

    def layout(self) -> Placement:
        return Placement(self.num_classes, self.num_shards, seed=self.seed, kind=self.placement)

    def shard(self, number: int, bias: Tensor | None = None) -> Shard:
        """Shard `number`; its biases start at `bias` (N,), by default 0."""
        start: bool | Tensor = self.has_bias
        if self.has_bias and bias is not None:
            start = bias
        shard = Shard(
            self.layout(),
            number,
            self.dim,
            row_optimizer=self.row_optimizer,
            dtype=self.dtype,
            bias=start,
            device=None,
        )
        shard.weight.mul_(self.row_scale)
        return shard
