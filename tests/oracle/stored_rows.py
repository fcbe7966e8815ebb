"""Two class tables and dense tensors, divided into shards as checkpoints store them."""

from pathlib import Path

import pytest
import torch

from tapas import LocalTable, UsageError
from tapas.checkpoints.folder import Contents
from tapas.checkpoints.rows import TableRows
from tapas.optim import LazyAdam, RowwiseAdagrad
from tapas.rng import stream
from tapas.tables.placement import Placement, RowRange
from tapas.tables.shard import Shard

C, D = 23, 3
HEAD, INPUTS = "model.head.table", "model.input_table"
OPTIONS = {
    HEAD: {"row_optimizer": RowwiseAdagrad.fused(lr=0.5), "bias": True, "dtype": torch.float32},
    INPUTS: {"row_optimizer": LazyAdam.fused(), "bias": False, "dtype": torch.bfloat16},
}
ORDERS = {HEAD: (4, "random"), INPUTS: (5, "contiguous")}
NUMBERS = {HEAD: {"num_updates": 7, "seed": 4}, INPUTS: {"num_updates": 7, "seed": 5}}
STATE = {"at": "here"}


def table_tensors() -> dict[str, torch.Tensor]:
    """The tensors of both tables, ordered by id; the second has no biases."""
    draws, found = stream(0, "rows"), {}
    for prefix in ORDERS:
        for name, held in LocalTable(C, D, **OPTIONS[prefix]).row_tensors().items():
            found[f"{prefix}.{name}"] = torch.randn(held.shape, generator=draws).to(held.dtype)
    return found


def dense_tensors() -> dict[str, torch.Tensor]:
    draws = stream(0, "dense")
    names = ("model.encoder.w", "optimizer.0.exp_avg", "count")
    return {name: torch.randn(4, 5, generator=draws) for name in names}


def wanted(number: int, num_shards: int, *, order: str = "same") -> dict[str, RowRange]:
    orders = ORDERS if order == "same" else {HEAD: (5, "contiguous"), INPUTS: (9, "random")}
    return {
        prefix: RowRange(Placement(C, num_shards, seed=seed, kind=kind), number)
        for prefix, (seed, kind) in orders.items()
    }


def part_of(tensor: torch.Tensor, rows: RowRange) -> torch.Tensor:
    return tensor[rows.placement.ids_of(rows.number)] if len(tensor) else tensor


def kept_by(ranges: dict[str, RowRange]) -> dict[str, TableRows]:
    found = {}
    for prefix, rows in ranges.items():
        shard = Shard(rows.placement, rows.number, D, device=None, **OPTIONS[prefix])
        assert shard.row_range == rows
        tensors = {
            name: part_of(table_tensors()[f"{prefix}.{name}"], rows) for name in shard.row_tensors()
        }
        found[prefix] = TableRows(rows, tensors)
    return found


def held_by(number: int, num_processes: int) -> Contents:
    """What process `number` saves: its rows, and the dense tensors that all have."""
    return Contents(dense_tensors(), kept_by(wanted(number, num_processes)), NUMBERS)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[k], other[k]) and one[k].dtype == other[k].dtype for k in one
    )


def refused(call, kind=UsageError) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
