"""Writing and reading rows of class tables, in any order, for any number of processes.

Every process writes the rows that it keeps, in the order in which it keeps them. For each table,
state.json records this order and which range of it is in which file. So any number of processes
can read a table: all rows by id, or a range of another order.
"""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tapas.checkpoints.files import Checksums, rows_file, unshare, write_file
from tapas.errors import DataError, UsageError, choice
from tapas.native.memory import prefer_huge_pages
from tapas.regular_file import check_stored
from tapas.tables.placement import Placement, RowRange

READ_BYTES = 64 * 2**20  # block size when reading rows
PARTS = ("weight", "bias")  # what is read of a table that is not trained


@dataclass(frozen=True, slots=True)
class TableRows:
    """The N rows of a table that one process keeps: "weight" and other tensors, (N, ...) each.

    Tensors may also have 0 rows, such as the biases of a table without biases.
    """

    range: RowRange
    tensors: Mapping[str, Tensor]


class Written(NamedTuple):
    """What process `number` has written; plain data that can be sent to other processes."""

    number: int
    files: Checksums
    tables: dict[str, Any]  # as in state.json, but only with the range of this process


class WriteFailed(NamedTuple):
    """The answer of a process that could not write: errno and text of an OSError."""

    number: int
    errno: int
    words: str


@dataclass(frozen=True, slots=True)
class RowsFile:
    """The rows of one process, checked and ready to write."""

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
                        f"{prefix}.{name} has {len(tensor)} rows; expected {stop - start}, the "
                        f"positions {start} to {stop} of the table."
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
        """Write the rows of process `number`; without rows no file. Raises OSError on failure."""
        name = rows_file(number)
        files = write_file(folder, name, self.tensors) if self.tables else {}
        tables = {
            prefix: {**table, "ranges": [[name, *bounds] for bounds in table["ranges"]]}
            for prefix, table in self.tables.items()
        }
        return Written(number, files, tables)


def write_rows(folder: Path, number: int, tables: Mapping[str, TableRows]) -> Written | WriteFailed:
    """Write the rows that server `number` keeps into the existing `folder`.

    `tables` are named as in the checkpoint, such as "model.head.table". A full disk is returned
    as `WriteFailed` and not raised, so that the caller can wait for all servers. May be called
    twice.
    """
    try:
        return RowsFile.of(tables).write(folder, number)
    except OSError as error:
        code = error.errno or errno.EIO
        return WriteFailed(number, code, error.strerror or os.strerror(code))


def join_tables(written: Sequence[Written]) -> dict[str, Any]:
    """Merge the tables of all processes, as in state.json.

    Raises UsageError unless every row was written exactly once.
    """
    joined: dict[str, Any] = {}
    for each in written:
        for prefix, table in each.tables.items():
            known = joined.setdefault(prefix, {**table, "ranges": []})
            if {**known, "ranges": table["ranges"]} != table:
                raise UsageError(
                    f"the processes that keep rows of {prefix} differ in its size, dtype or row "
                    "order. Build the table with the same arguments in all of them."
                )
            known["ranges"] += table["ranges"]
    for prefix, table in joined.items():
        table["ranges"].sort(key=lambda found: found[1])
        reached = 0
        for _, start, stop in [*table["ranges"], ("", table["num_classes"], 0)]:
            if start != reached:
                what = "no process has" if start > reached else "two processes have"
                first, last = sorted((start, reached))
                raise UsageError(
                    f"{what} written rows {first} to {last - 1} of {prefix}; expected each of its "
                    f"{table['num_classes']} rows once."
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
    to_train: bool = True,
) -> dict[str, Tensor]:
    """Tensors of tables by name: for tables in `ranges` these rows, for others all rows by id.

    With `only_these`, tables that are not in `ranges` are left out. Unless they are `to_train`,
    only rows and biases are read, memory-mapped where that is possible.
    """
    tables = record["tables"]
    for prefix, wanted in ranges.items():
        _check_range(folder, prefix, choice(f"table in {folder}", prefix, tables), wanted)
    found = {}
    for prefix in ranges if only_these else tables:
        table = tables[prefix]
        wanted = ranges.get(prefix) or RowRange.all_by_id(table["num_classes"])
        for name in table["tensors"]:
            if not to_train and name not in PARTS:
                continue
            source = _StoredRows(folder, table, prefix, name)
            mapped = None if to_train else source.mapped(wanted, torch.device(device))
            rows = source.read(wanted, torch.device(device)) if mapped is None else mapped
            found[f"{prefix}.{name}"] = rows
    return found


class _StoredRows:
    """One tensor of a table, spread over several files."""

    def __init__(self, folder: Path, table: Mapping[str, Any], prefix: str, name: str):
        spec, order = table["tensors"][name], table["order"]
        self.folder, self.ranges, self.name = folder, table["ranges"], f"{prefix}.{name}"
        self.shape, self.dtype = spec["shape"], getattr(torch, spec["dtype"])
        self.stored = RowRange(
            Placement(table["num_classes"], 1, seed=order["seed"], kind=order["kind"])
        )

    def read(self, wanted: RowRange, device: torch.device) -> Tensor:
        """The rows of the range `wanted`, in its order."""
        size = wanted.stop - wanted.start if self.shape[0] else 0
        same = self.stored.same_order(wanted)
        first_row, last_row = (wanted.start, wanted.stop) if same else (0, self.shape[0])
        if size:
            self._check_files(first_row, last_row)  # before memory of that size is taken
        found = torch.empty((size, *self.shape[1:]), dtype=self.dtype, device=device)
        prefer_huge_pages(found)
        if not size:
            return found
        if same:
            for first, rows in self._blocks(first_row, last_row):
                found[first - wanted.start : first - wanted.start + len(rows)] = rows.to(device)
            return found
        for first, rows in self._blocks(first_row, last_row):
            ids = self.stored.placement.ids_at(torch.arange(first, first + len(rows), device="cpu"))
            at = wanted.placement.permute(ids) - wanted.start
            mine = (at >= 0) & (at < size)
            found[at[mine].to(device)] = rows[mine].to(device)
        return found

    def mapped(self, wanted: RowRange, device: torch.device) -> Tensor | None:
        """The rows of the range `wanted` inside of their file; None where they must be read."""
        whole = len(self.ranges) == 1 and wanted.start == 0 and wanted.stop == self.shape[0]
        if device.type != "cpu" or not whole or not self.stored.same_order(wanted):
            return None
        self._check_files(0, self.shape[0])
        file, *_ = self.ranges[0]
        with self._stored_in(file) as rows:
            found: Tensor = rows[:]
        return found

    def _blocks(self, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """Blocks of the rows at positions `first` .. `last` - 1, each with its first position."""
        row_bytes = torch.empty(self.shape[1:], dtype=self.dtype, device="meta").nbytes
        step = max(1, READ_BYTES // max(1, row_bytes))
        for file, start, stop in self.ranges:
            begin, end = max(first, start), min(last, stop)
            if begin >= end:
                continue
            with self._stored_in(file) as rows:
                for position in range(begin, end, step):
                    yield position, rows[position - start : min(position + step, end) - start]

    def _check_files(self, first: int, last: int) -> None:
        """Raise DataError unless these rows are in files, in the shape and dtype recorded."""
        for file, start, stop in self.ranges:
            if max(first, start) >= min(last, stop):
                continue
            with self._stored_in(file) as rows:
                shape, dtype = rows.get_shape(), rows[:0].dtype
                if shape != [stop - start, *self.shape[1:]] or dtype != self.dtype:
                    raise DataError(
                        f"{self.folder / file} has {self.name} of shape {shape} and {dtype}; "
                        f"expected {[stop - start, *self.shape[1:]]} and {self.dtype}."
                    )

    @contextmanager
    def _stored_in(self, file: str) -> Iterator[Any]:
        """The rows in `file`, which can be sliced."""
        try:
            with safe_open(check_stored(self.folder / file), framework="pt") as opened:
                yield opened.get_slice(self.name)
        except (SafetensorError, OSError) as error:
            raise DataError(f"{self.folder / file} cannot be read: {error}.") from error


def _check_range(folder: Path, prefix: str, table: Mapping[str, Any], wanted: RowRange) -> None:
    if table["num_classes"] != wanted.placement.num_classes:
        raise UsageError(
            f"{prefix} in {folder} has {table['num_classes']} classes; expected "
            f"{wanted.placement.num_classes}. `tapas checkpoint grow` adds classes."
        )
    if not 0 <= wanted.number < wanted.placement.num_shards:
        raise UsageError(
            f"{prefix} has no shard {wanted.number}; expected 0 to "
            f"{wanted.placement.num_shards - 1}."
        )
