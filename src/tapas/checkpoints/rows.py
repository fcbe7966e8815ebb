"""Rows of class tables out of a checkpoint: any shard, whatever order they were saved in.

One process saves rows by id. Many save theirs in the order of a `Placement`, of which each
held a stretch. Either is read as either: the whole table by id, or one shard of it.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from tapas.checkpoints.files import TENSORS, is_sharded
from tapas.errors import UsageError, pick
from tapas.tables.placement import Placement

READ_BYTES = 64 * 2**20  # of rows that are looked through at once for those of a shard
EXTRA = "numbers"


@dataclass(frozen=True, slots=True)
class ShardRows:
    """The rows of shard `number` of `placement`, in the order in which it keeps them."""

    placement: Placement
    number: int


@dataclass(frozen=True, slots=True)
class Table:
    """A class table among the tensors of a checkpoint."""

    prefix: str  # its tensors are called prefix.weight and so on
    num_classes: int
    rows: tuple[str, ...]  # names of the tensors with one row for each class
    extra: Mapping[str, Any]  # num_updates, seed, num_shards, placement

    def placement(self, num_shards: int = 1) -> Placement:
        """Where its classes are."""
        kind = self.extra.get("placement", "random")  # version 0.1 knew no other
        return Placement(self.num_classes, num_shards, seed=self.extra["seed"], kind=kind)

    def state_of(self, name: str) -> tuple[str, str]:
        """("weight", "sum") of prefix.weight_sum, ("weight", "") of prefix.weight."""
        part, _, key = name.removeprefix(f"{self.prefix}.").partition("_")
        return part, key


def tables_in(state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Table]:
    """The tables whose numbers are in `state["extra"]` and whose rows are among `shapes`."""
    found = {}
    extra = state.get("extra")
    for key, value in extra.items() if isinstance(extra, dict) else ():
        if not (key.endswith(EXTRA) and isinstance(value, dict) and "num_shards" in value):
            continue
        prefix = f"model.{key.removesuffix(EXTRA)}".removesuffix(".")
        if f"{prefix}.weight" not in shapes:
            continue
        size = shapes[f"{prefix}.weight"][0]
        mine = [name for name in shapes if _table_of(name) == prefix]
        rows = tuple(name for name in mine if shapes[name][:1] == (size,))
        found[prefix] = Table(prefix, size, rows, value)
    return found


class Source(Protocol):
    """The tensors of a checkpoint, to be read in parts."""

    shapes: dict[str, tuple[int, ...]]

    def by_placement(self, name: str) -> bool:
        """Whether the rows of `name` are in the order of their table's placement."""
        ...

    def whole(self, name: str) -> Tensor: ...

    def stretch(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `start` .. `stop` - 1, as stored."""
        ...


class OneFile:
    """What one process saved."""

    def __init__(self, folder: Path, stack: ExitStack):
        self._file: Any = stack.enter_context(safe_open(folder / TENSORS, framework="pt"))
        names = self._file.keys()
        self.shapes = {name: tuple(self._file.get_slice(name).get_shape()) for name in names}

    def by_placement(self, name: str) -> bool:
        return False

    def whole(self, name: str) -> Tensor:
        found: Tensor = self._file.get_tensor(name)
        return found

    def stretch(self, name: str, start: int, stop: int) -> Tensor:
        found: Tensor = self._file.get_slice(name)[start:stop]
        return found


class ManyFiles:
    """What many processes saved in pieces."""

    def __init__(self, folder: Path, pieces: list[str]):
        from tapas.checkpoints.pieces import stored_shapes  # slow to import, and seldom needed

        self.folder, self.pieces = folder, set(pieces)
        self._stored = stored_shapes(folder)
        self.shapes = {name: stored.shape for name, stored in self._stored.items()}

    def by_placement(self, name: str) -> bool:
        return name in self.pieces

    def whole(self, name: str) -> Tensor:
        from tapas.checkpoints.pieces import load_pieces

        stored = self._stored[name]
        found = torch.empty(stored.shape, dtype=stored.dtype, device="cpu")
        load_pieces(self.folder, {name: found})
        return found

    def stretch(self, name: str, start: int, stop: int) -> Tensor:
        from tapas.checkpoints.pieces import Piece, load_pieces

        (total, *width), dtype = self._stored[name].shape, self._stored[name].dtype
        found = torch.empty((stop - start, *width), dtype=dtype, device="cpu")
        load_pieces(self.folder, {name: Piece(found, start, total)})
        return found


def open_source(folder: Path, record: Mapping[str, Any], stack: ExitStack) -> Source:
    """The tensors of the checkpoint in `folder`, as long as `stack` is open."""
    if is_sharded(record):
        return ManyFiles(folder, record["pieces"])
    return OneFile(folder, stack)


def read_tensors(
    folder: Path,
    record: Mapping[str, Any],
    *,
    device: str | torch.device = "cpu",
    shards: Mapping[str, ShardRows] | None = None,
) -> dict[str, Tensor]:
    """All tensors by name: whole, or the rows of `shards` for the tables that it names."""
    shards = shards or {}
    if not is_sharded(record) and not shards:
        return load_file(folder / TENSORS, device=str(device))
    with _opened(folder, record, shards) as (source, tables):
        return _read(source, tables, shards, list(source.shapes), torch.device(device))


def read_shards(
    folder: Path, record: Mapping[str, Any], shards: Mapping[str, ShardRows]
) -> dict[str, Tensor]:
    """The tensors of the tables that `shards` names, with the rows of those shards; no other."""
    with _opened(folder, record, shards) as (source, tables):
        mine = [name for name in source.shapes if _table_of(name) in shards]
        return _read(source, tables, shards, mine, torch.device("cpu"))


def read_rest(folder: Path, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that belong to no table; no rows are read."""
    with _opened(folder, record, {}) as (source, tables):
        rest = [name for name in source.shapes if _table_of(name) not in tables]
        return _read(source, tables, {}, rest, torch.device("cpu"))


@contextmanager
def _opened(
    folder: Path, record: Mapping[str, Any], shards: Mapping[str, ShardRows]
) -> Iterator[tuple[Source, dict[str, Table]]]:
    """The tensors in `folder` and the tables among them, which have all of `shards`."""
    with ExitStack() as stack:
        source = open_source(folder, record, stack)
        tables = tables_in(record["state"], source.shapes)
        for prefix, wanted in shards.items():
            _check_same_classes(folder, pick(f"table in {folder}", prefix, tables), wanted)
        yield source, tables


def _read(
    source: Source,
    tables: Mapping[str, Table],
    shards: Mapping[str, ShardRows],
    names: list[str],
    device: torch.device,
) -> dict[str, Tensor]:
    """The tensors `names`: of tables the rows of `shards`, or all by id; whole ones else."""
    found = {}
    for name in names:
        prefix = _table_of(name)
        table = tables.get(prefix)
        if table is not None and name in table.rows:
            found[name] = _rows(source, table, name, shards.get(prefix), device)
        else:
            found[name] = source.whole(name).to(device)
    return found


def _table_of(name: str) -> str:
    """The table that a tensor of this name would belong to."""
    return name.rpartition(".")[0]


def _rows(
    source: Source, table: Table, name: str, wanted: ShardRows | None, device: torch.device
) -> Tensor:
    """The rows of tensor `name` of `table`: those `wanted`, or all by id."""
    by_id = Placement(table.num_classes, 1, kind="contiguous")
    order, number = (wanted.placement, wanted.number) if wanted else (by_id, 0)
    start, stop = order.start(number), order.start(number + 1)
    stored = table.placement() if source.by_placement(name) else by_id
    if _same_order(stored, order):
        return source.stretch(name, start, stop).to(device)
    first = source.stretch(name, 0, 1)
    found = first.new_empty((stop - start, *first.shape[1:]), device=device)
    for at, rows in _stretches(source, name, table.num_classes, first.nbytes):
        ids = stored.ids_at(torch.arange(at, at + len(rows), device="cpu"))
        place = order.permute(ids) - start
        mine = (place >= 0) & (place < stop - start)
        found[place[mine].to(device)] = rows[mine].to(device)
    return found


def _stretches(
    source: Source, name: str, num_rows: int, row_bytes: int
) -> Iterator[tuple[int, Tensor]]:
    step = max(1, READ_BYTES // max(1, row_bytes))
    for at in range(0, num_rows, step):
        yield at, source.stretch(name, at, min(at + step, num_rows))


def _same_order(one: Placement, other: Placement) -> bool:
    return one.kind == other.kind and (one.kind == "contiguous" or one.seed == other.seed)


def _check_same_classes(folder: Path, table: Table, wanted: ShardRows) -> None:
    if table.num_classes != wanted.placement.num_classes:
        raise UsageError(
            f"{table.prefix} in {folder} has {table.num_classes} classes; asked for as one of "
            f"{wanted.placement.num_classes}. `tapas checkpoint grow` adds classes."
        )
    if not 0 <= wanted.number < wanted.placement.num_shards:
        raise UsageError(
            f"there is no shard {wanted.number} of {table.prefix}; expected 0 to "
            f"{wanted.placement.num_shards - 1}."
        )
