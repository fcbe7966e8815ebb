"""What of a tensor lies where: the plans by which torch.distributed.checkpoint writes and reads.

DTensors would say it too, but only of equal cuts, and of one piece for each process.
"""

import errno
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from tapas.errors import DataError, UsageError

CONTENTS = ".metadata"
METADATA = "torch.distributed.checkpoint.metadata"
MAY_BE_BUILT = {  # by the pickle of the contents, which could otherwise run any code
    *((METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta")),
    *((METADATA, name) for name in ("ChunkStorageMetadata", "TensorStorageMetadata")),
    *((METADATA, name) for name in ("TensorProperties", "_MEM_FORMAT_ENCODING")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    *((module, "PosixPath") for module in ("pathlib", "pathlib._local")),
}


@dataclass(frozen=True, slots=True)
class Slot:
    """Rows `first` .. of the tensor `key`, and where they go; all of it if `first` is None."""

    key: str
    holder: int  # the number of the piece among those that are here
    first: int | None
    item: WriteItem


def whole_slot(name: str, tensor: Tensor) -> Slot:
    """For all of `tensor`."""
    return Slot(name, 0, None, _item(name, tensor, 0, tensor.shape, WriteItemType.TENSOR))


def piece_slot(
    name: str, key: str, holder: int, rows: Tensor, *, first: int, place: int, total: int
) -> Slot:
    """For `rows`, which are row `first` and on of tensor `key`, as rows `place` .. of `total`."""
    size = torch.Size((total, *rows.shape[1:]))
    return Slot(key, holder, first, _item(name, rows, place, size, WriteItemType.SHARD))


def _item(name: str, rows: Tensor, place: int, size: torch.Size, kind: WriteItemType) -> WriteItem:
    offsets = torch.Size([place, *[0] * rows.dim()][: rows.dim()])
    data = TensorWriteData(
        chunk=ChunkStorageMetadata(offsets=offsets, sizes=rows.shape),
        properties=TensorProperties(dtype=rows.dtype),
        size=size,
    )
    return WriteItem(MetadataIndex(name, offsets), kind, tensor_data=data)


class SavePlanner(DefaultSavePlanner):
    """Writes `slots`, and sees to it that those of all processes make up whole tensors.

    With `alone` the pieces are written as if each were held by a process of its own; with
    `number` all are, as if by process `number` of a group.
    """

    def __init__(self, slots: Sequence[Slot], *, alone: bool = False, number: int | None = None):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.slots, self.alone = {each.item.index: each for each in slots}, alone
        self.number = number

    def by_holder(self, items: Sequence[WriteItem]) -> dict[int | None, list[WriteItem]]:
        """`items` by the process that is to seem to write them; None is this one."""
        if not self.alone:
            return {self.number: list(items)}
        found: dict[int | None, list[WriteItem]] = {}
        for item in items:
            found.setdefault(self.slots[item.index].holder, []).append(item)
        return found

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([each.item for each in self.slots.values()])
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        check_whole([item for plan in all_plans for item in plan.items])
        return super().create_global_plan(all_plans)

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        found = self.slots[index]
        held: Tensor = self.state_dict[found.key]
        if found.first is None or found.item.tensor_data is None:
            return held
        return held[found.first : found.first + found.item.tensor_data.chunk.sizes[0]]


def check_whole(items: Sequence[WriteItem]) -> None:
    """An error that names the first tensor whose rows are missing or given twice."""
    rows: dict[str, list[tuple[int, int, torch.Size]]] = {}
    for item in items:
        if item.type == WriteItemType.SHARD and item.tensor_data is not None:
            chunk, size = item.tensor_data.chunk, item.tensor_data.size
            stop = chunk.offsets[0] + chunk.sizes[0]
            rows.setdefault(item.index.fqn, []).append((chunk.offsets[0], stop, size))
    for name, found in rows.items():
        found.sort()
        size = found[0][2]
        if any(other != size for _, _, other in found):
            told = " and ".join(sorted({str(tuple(other)) for _, _, other in found}))
            raise UsageError(f"the pieces of '{name}' are of tensors of shape {told}.")
        if size[0] == 0:
            continue
        reached = 0
        for start, stop, _ in found:
            if start != reached:
                raise UsageError(
                    f"the pieces of '{name}' do not meet: one ends before row {reached}, the next "
                    f"begins at row {start}."
                )
            reached = stop
        if reached != size[0]:
            raise UsageError(f"the pieces of '{name}' make up {reached} of {size[0]} rows.")


class Part(NamedTuple):
    """What process `number` has written by itself, as far as the others must know of it."""

    number: int
    items: tuple[WriteItem, ...]
    results: tuple[WriteResult, ...]
    files: dict[str, dict[str, Any]]  # size and checksum by name

    def names(self, *, pieces: bool) -> set[str]:
        """The tensors of which it has pieces, or those which it has whole."""
        return {
            each.index.fqn for each in self.items if (each.type == WriteItemType.SHARD) == pieces
        }


def check_numbers(parts: Sequence[Part]) -> None:
    """An error unless there is one part of each number from 0 on."""
    numbers = sorted(part.number for part in parts)
    if numbers != list(range(len(numbers))):
        raise UsageError(
            f"the parts of a checkpoint have the numbers {', '.join(map(str, numbers))}; expected "
            f"each of 0 to {len(numbers) - 1} once. Give every writer a number of its own."
        )


def check_parts(folder: Path, parts: Sequence[Part]) -> None:
    """An error unless the files of all `parts` are in `folder`, and plain tensors in one of them.

    Whether pieces make up whole tensors is for `check_whole`.
    """
    check_numbers(parts)
    holders: dict[str, int] = {}
    for part in parts:
        for name in sorted(part.names(pieces=False)):
            if (other := holders.setdefault(name, part.number)) != part.number:
                raise UsageError(
                    f"tensor '{name}' is whole in part {other} and in part {part.number}. Let one "
                    "of them write it, or each a piece."
                )
    for part in parts:
        for name in sorted(part.names(pieces=True) & holders.keys()):
            raise UsageError(
                f"tensor '{name}' is whole in part {holders[name]} and a piece in part "
                f"{part.number}. Let one write all of it, or each a piece."
            )
        for name, print_ in part.files.items():
            file = folder / name
            size = f"{file.stat().st_size:,} bytes" if file.exists() else "none"
            if size != f"{print_['bytes']:,} bytes":
                raise UsageError(
                    f"part {part.number} has written {name} of {print_['bytes']:,} bytes, but here "
                    f"{folder} has {size}. All writers need one folder that all of them see."
                )


class LoadPlanner(DefaultLoadPlanner):
    """Reads every stored stretch that overlaps with row `starts[name]` and on of each tensor."""

    def __init__(self, starts: Mapping[str, int]):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.starts = starts

    def create_local_plan(self) -> LoadPlan:
        items: list[ReadItem] = []
        for name, held in self.state_dict.items():
            stored = self.metadata.state_dict_metadata[name] if self.metadata else None
            if held.numel() and isinstance(stored, TensorStorageMetadata):
                start = [self.starts.get(name, 0), *[0] * held.dim()][: held.dim()]
                chunk = ChunkStorageMetadata(offsets=torch.Size(start), sizes=held.shape)
                items += create_read_items_for_chunk_list(name, stored, [chunk])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        held: Tensor = self.state_dict[index.fqn]
        return held


class Writer(FileSystemWriter):
    """Makes no folder, which others might not see; whatever it cannot write is an OSError."""

    def prepare_local_plan(self, plan: Any) -> Any:
        if not Path(self.path).is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return super().prepare_local_plan(plan)

    def write_data(self, plan: Any, planner: Any) -> Any:
        """One file for this process, or one for each process whose pieces it holds."""
        done: Future[list[WriteResult]] = Future()
        results: list[WriteResult] = []
        try:
            for number, items in planner.by_holder(plan.items).items():
                where = plan.storage_data
                if number is not None:
                    where = replace(where, prefix=f"__{number}_")
                written = super().write_data(
                    replace(plan, items=items, storage_data=where), planner
                )
                results += written.wait()
        except RuntimeError as error:  # torch's archive, which cannot go on
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__
            raise cause or OSError(errno.EIO, str(error)) from None
        done.set_result(results)
        return done


class Reader(FileSystemReader):
    """Reads the contents once, and builds nothing from them but what contents are made of."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._contents: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._contents is None:
            file = Path(self.path) / CONTENTS
            try:
                with file.open("rb") as opened:
                    self._contents = _Unpickler(opened).load()
            except OSError as error:
                raise DataError(f"{file} cannot be read: {error.strerror}.") from error
            except Exception as error:  # a torn pickle raises whatever its bytes lead to
                raise DataError(f"{file} is damaged: {error or type(error).__name__}.") from error
        return self._contents

    def contents(self) -> dict[str, TensorStorageMetadata]:
        found = self.read_metadata().state_dict_metadata
        return {k: v for k, v in found.items() if isinstance(v, TensorStorageMetadata)}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_type = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_type or (module, name) in MAY_BE_BUILT:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no checkpoint needs")
