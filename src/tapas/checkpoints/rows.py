"""Rows of class tables into files and out of them, in any order, for any number of processes.

Every process writes the rows that it keeps, in the order in which it keeps them. state.json says
for each table which order that is and which places of it each file has, so that any number of
processes can read any table: all of it by id, or the range of another order.
"""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tapas.checkpoints.files import Checksums, rows_file, unshare, write_file
from tapas.errors import DataError, UsageError, choice
from tapas.tables.placement import Placement, RowRange

READ_BYTES = 64 * 2**20  # of rows in another order that are read at once


@dataclass(frozen=True, slots=True)
class TableRows:
    """What one process keeps of a table: "weight" and the like, (N, ...) each, N rows.

    Tensors without rows are fine: the biases of a table that has none.
    """

    range: RowRange
    tensors: Mapping[str, Tensor]


class Written(NamedTuple):
    """What process `number` has written: plain data, so that it can be sent to another."""

    number: int
    files: Checksums
    tables: dict[str, Any]  # as in state.json, each with the range of this process alone


class WriteFailed(NamedTuple):
    """What a process answers that could not write: the number and words of an OSError."""

    number: int
    errno: int
    words: str


@dataclass(frozen=True, slots=True)
class RowsFile:
    """The rows of one process, checked and ready to be written."""

    tensors: dict[str, Tensor]
    tables: dict[str, Any]

    @classmethod
    def of(cls, tables: Mapping[str, TableRows]) -> Self:
        tensors, listed = {}, {}
        for prefix, rows in tables.items():
            order, start, stop = rows.range.placement, rows.range.start, rows.range.stop
            specs = {}
            for name, tensor in rows.tensors.items():
                if len(tensor) not in (0, stop - start):
                    raise UsageError(
                        f"{prefix}.{name} has {len(tensor)} rows; expected {stop - start}, those "
                        f"from place {start} to {stop}."
                    )
                total = order.num_classes if len(tensor) else 0
                dtype = str(tensor.dtype).removeprefix("torch.")
                specs[name] = {"dtype": dtype, "shape": [total, *tensor.shape[1:]]}
                if len(tensor):
                    tensors[f"{prefix}.{name}"] = tensor
            listed[prefix] = {
                "num_classes": order.num_classes,
                "dim": specs["weight"]["shape"][1],
                "order": {"kind": order.kind, "seed": order.seed},
                "tensors": specs,
                "ranges": [[start, stop]],
            }
        return cls(unshare(tensors), listed)

    def write(self, folder: Path, number: int) -> Written:
        """Write them as process `number`; without rows no file. OSError if that cannot be."""
        name = rows_file(number)
        files = write_file(folder, name, self.tensors) if self.tables else {}
        tables = {
            prefix: {**table, "ranges": [[name, *places] for places in table["ranges"]]}
            for prefix, table in self.tables.items()
        }
        return Written(number, files, tables)


def write_rows(folder: Path, number: int, tables: Mapping[str, TableRows]) -> Written | WriteFailed:
    """Write the rows that server `number` keeps into `folder`, which exists.

    `tables` are by the names that they have in a checkpoint, such as "model.head.table". A full
    disk is an answer, too, so that all servers are heard before anything is given up. May be
    called twice.
    """
    try:
        return RowsFile.of(tables).write(folder, number)
    except OSError as error:
        code = error.errno or errno.EIO
        return WriteFailed(number, code, error.strerror or os.strerror(code))


def join_tables(written: Sequence[Written]) -> dict[str, Any]:
    """The tables of all processes, as in state.json; an error unless every row is there once."""
    joined: dict[str, Any] = {}
    for each in written:
        for prefix, table in each.tables.items():
            known = joined.setdefault(prefix, {**table, "ranges": []})
            if {**known, "ranges": table["ranges"]} != table:
                raise UsageError(
                    f"the processes that keep rows of {prefix} disagree on its sizes, dtypes or "
                    "order. Build the table with the same arguments in all of them."
                )
            known["ranges"] += table["ranges"]
    for prefix, table in joined.items():
        table["ranges"].sort(key=lambda found: found[1])
        reached = 0
        for _, start, stop in [*table["ranges"], ("", table["num_classes"], 0)]:
            if start != reached:
                what = "nobody has" if start > reached else "two processes have"
                first, last = sorted((start, reached))
                raise UsageError(
                    f"{what} written the rows {first} to {last - 1} of {prefix}, in its stored "
                    f"order of {table['num_classes']}."
                )
            reached = stop
    return joined


def read_rows(
    folder: Path,
    record: Mapping[str, Any],
    ranges: Mapping[str, RowRange],
    *,
    only_these: bool = False,
    device: str | torch.device = "cpu",
) -> dict[str, Tensor]:
    """Tensors of tables by name: of those in `ranges` these rows, of others all by id, or none."""
    tables = record["tables"]
    for prefix, wanted in ranges.items():
        _check_range(folder, prefix, choice(f"table in {folder}", prefix, tables), wanted)
    found = {}
    for prefix in ranges if only_these else tables:
        table = tables[prefix]
        wanted = ranges.get(prefix) or RowRange.all_by_id(table["num_classes"])
        for name in table["tensors"]:
            source = _StoredRows(folder, table, prefix, name)
            found[f"{prefix}.{name}"] = source.read(wanted, torch.device(device))
    return found


class _StoredRows:
    """One tensor of a table, spread over the files that `table` lists."""

    def __init__(self, folder: Path, table: Mapping[str, Any], prefix: str, name: str):
        spec, order = table["tensors"][name], table["order"]
        self.folder, self.ranges, self.name = folder, table["ranges"], f"{prefix}.{name}"
        self.shape, self.dtype = spec["shape"], getattr(torch, spec["dtype"])
        self.stored = RowRange(
            Placement(table["num_classes"], 1, seed=order["seed"], kind=order["kind"])
        )

    def read(self, wanted: RowRange, device: torch.device) -> Tensor:
        """The rows `wanted`, in its order."""
        size = wanted.stop - wanted.start if self.shape[0] else 0
        found = torch.empty((size, *self.shape[1:]), dtype=self.dtype, device=device)
        if not size:
            return found
        if self.stored.same_order(wanted):
            for place, rows in self._blocks(wanted.start, wanted.stop):
                found[place - wanted.start : place - wanted.start + len(rows)] = rows.to(device)
            return found
        for place, rows in self._blocks(0, self.shape[0]):
            ids = self.stored.placement.ids_at(torch.arange(place, place + len(rows), device="cpu"))
            at = wanted.placement.permute(ids) - wanted.start
            mine = (at >= 0) & (at < size)
            found[at[mine].to(device)] = rows[mine].to(device)
        return found

    def _blocks(self, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """The rows at places `first` .. `last` - 1 in blocks, each with its first place."""
        row_bytes = torch.empty(self.shape[1:], dtype=self.dtype, device="meta").nbytes
        step = max(1, READ_BYTES // max(1, row_bytes))
        for file, start, stop in self.ranges:
            begin, end = max(first, start), min(last, stop)
            if begin >= end:
                continue
            try:
                with safe_open(self.folder / file, framework="pt") as opened:
                    rows: Any = opened.get_slice(self.name)
                    if list(rows.get_shape()) != [stop - start, *self.shape[1:]]:
                        raise DataError(
                            f"{self.folder / file} has {self.name} of shape {rows.get_shape()}; "
                            f"expected {[stop - start, *self.shape[1:]]}."
                        )
                    for place in range(begin, end, step):
                        yield place, rows[place - start : min(place + step, end) - start]
            except (SafetensorError, OSError) as error:
                raise DataError(f"{self.folder / file} cannot be read: {error}.") from error


def _check_range(folder: Path, prefix: str, table: Mapping[str, Any], wanted: RowRange) -> None:
    if table["num_classes"] != wanted.placement.num_classes:
        raise UsageError(
            f"{prefix} in {folder} has {table['num_classes']} classes; asked for as one of "
            f"{wanted.placement.num_classes}. `tapas checkpoint grow` adds classes."
        )
    if not 0 <= wanted.number < wanted.placement.num_shards:
        raise UsageError(
            f"there is no shard {wanted.number} of {prefix}; expected 0 to "
            f"{wanted.placement.num_shards - 1}."
        )
