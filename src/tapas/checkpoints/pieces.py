"""Tensors that many processes hold in pieces, on disk by torch.distributed.checkpoint.

A piece is a stretch of rows of a larger tensor. What m processes saved is loaded by any number
of them, each reading only the stored stretches that overlap with the rows it wants. Processes of
a group save together; others write a part each, and one of them joins the parts.
"""

import errno
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from tapas.atomic_file import fingerprint
from tapas.checkpoints.piece_plans import (
    CONTENTS,
    LoadPlanner,
    Part,
    Reader,
    SavePlanner,
    Slot,
    Writer,
    check_parts,
    piece_slot,
    whole_slot,
)
from tapas.errors import UsageError

STRETCH_BYTES = 16 * 2**20  # of a piece that are stored, and read again, as one


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Rows `start` .. `start` + N - 1 of a (`total`, ...) tensor: `tensor` (N, ...)."""

    tensor: Tensor
    start: int
    total: int

    def __post_init__(self) -> None:
        if self.tensor.dim() == 0:
            raise UsageError("a piece of a tensor must have rows, got a single number.")
        stop = self.start + len(self.tensor)
        if not 0 <= self.start <= stop <= self.total:
            raise UsageError(
                f"a piece has rows {self.start} to {stop} of {self.total}; expected rows within "
                "the whole tensor."
            )


Pieces: TypeAlias = Tensor | Piece | Sequence[Piece]


@dataclass(frozen=True, slots=True)
class Stored:
    """What is on the disk under one name."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def save_pieces(
    folder: Path,
    tensors: Mapping[str, Pieces],
    *,
    group: dist.ProcessGroup | None = None,
    alone: bool = False,
) -> None:
    """Write `tensors` into `folder`, which exists; they are on the disk when this returns.

    All processes of `group` call it, with the same names. Plain tensors must be the same
    everywhere and are written once; pieces are written by those who hold them, and must make
    up whole tensors. With `alone` this process holds all pieces, and its files are those that
    so many processes would have written. OSError in all processes if one cannot write.
    """
    slots, state = _slots(tensors)
    with _plain_errors(alone), _quiet():
        save(
            state,
            storage_writer=Writer(folder),
            planner=SavePlanner(slots, alone=alone),
            process_group=group,
            no_dist=alone,
        )


def write_part(folder: Path, number: int, tensors: Mapping[str, Pieces]) -> Part:
    """Write `tensors` into `folder`, which exists, as process `number` of several; no group.

    They are on the disk when this returns, but there is nothing to load before `join_parts`.
    Called again, it writes the same file again. OSError if it cannot write.
    """
    slots, state = _slots(tensors)
    planner, writer = SavePlanner(slots, number=number), Writer(folder)
    planner.set_up_planner(state)
    (plan,) = writer.prepare_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    results = writer.write_data(plan, planner).wait()
    files = {file.name: fingerprint(file) for file in _rows_of(folder, number)}
    return Part(number, tuple(plan.items), tuple(results), files)


def join_parts(folder: Path, parts: Sequence[Part]) -> None:
    """Make what `write_part` has written into `folder` one whole, as a group would have saved it.

    Pieces must make up whole tensors, and plain tensors be in one part. OSError if it cannot
    write.
    """
    check_parts(folder, parts)
    _, contents = SavePlanner([]).create_global_plan([SavePlan(list(part.items)) for part in parts])
    Writer(folder).finish(contents, [list(part.results) for part in parts])


class Later:
    """A save that goes on in the background."""

    def __init__(self, future: Future[Any]):
        self._future = future

    def done(self) -> bool:
        """Whether `finish` would come back at once."""
        return self._future.done()

    def finish(self) -> None:
        """Return once all is on the disk in all processes; raise what `save_pieces` would."""
        with _plain_errors(alone=False):
            self._future.result()


def save_pieces_later(
    folder: Path, tensors: Mapping[str, Pieces], *, group: dist.ProcessGroup
) -> Later:
    """As `save_pieces`, of the tensors as they are now: they are copied, and may then change.

    Nothing else may meet on `group` meanwhile: make one with `group_apart`.
    """
    slots, state = _slots(tensors)
    answer = async_save(
        state, storage_writer=Writer(folder), planner=SavePlanner(slots), process_group=group
    )
    return Later(answer if isinstance(answer, Future) else answer.upload_completion)


def group_apart(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """The processes of `group` once more, for meetings out of the order of the others."""
    timeout = None
    with suppress(RuntimeError):  # a group for GPUs alone has no such part
        # as patient as the group itself: a thread that waits longer would keep a process alive
        timeout = group._get_backend(torch.device("cpu")).options._timeout
    members = dist.get_process_group_ranks(group)
    made: dist.ProcessGroup = dist.new_group(
        members,
        backend="gloo",
        timeout=timeout,
        # of a part of the processes, the others are not here to take part
        use_local_synchronization=len(members) < dist.get_world_size(),
    )
    return made


def tell_all(value: Any, group: dist.ProcessGroup) -> list[Any]:
    """What every process of `group` brings, by rank; anything that can be pickled."""
    heard: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(heard, value, group=group)
    return heard


def load_pieces(folder: Path, tensors: Mapping[str, Tensor | Piece]) -> None:
    """Fill `tensors` in place from what was saved into `folder`. Any process, on its own."""
    reader = Reader(folder)
    contents = reader.contents()
    state, starts = {}, {}
    for name, value in tensors.items():
        state[name] = held = value.tensor if isinstance(value, Piece) else value
        shape = tuple(held.shape)
        if isinstance(value, Piece):
            starts[name], shape = value.start, (value.total, *held.shape[1:])
        if name not in contents:
            raise UsageError(f"there is no tensor '{name}' in {folder}.")
        found = contents[name].size, contents[name].properties.dtype
        if (tuple(found[0]), found[1]) != (shape, held.dtype):
            raise UsageError(
                f"tensor '{name}' in {folder} has shape {tuple(found[0])} and {found[1]}; asked "
                f"for as {shape} and {held.dtype}."
            )
    with _plain_errors(alone=True), _quiet():
        load(state, storage_reader=reader, planner=LoadPlanner(starts), no_dist=True)


def stored_shapes(folder: Path) -> dict[str, Stored]:
    """What was saved into `folder`, by name."""
    return {
        name: Stored(tuple(value.size), value.properties.dtype)
        for name, value in Reader(folder).contents().items()
    }


def files_of(folder: Path, rank: int | None = None) -> list[Path]:
    """The files that `rank` has written into `folder`; of all of them if left out."""
    contents = [folder / CONTENTS] if not rank else []
    return _rows_of(folder, "*" if rank is None else rank) + contents


def _rows_of(folder: Path, rank: int | str) -> list[Path]:
    return sorted(folder.glob(f"__{rank}_*.distcp"))


def _slots(tensors: Mapping[str, Pieces]) -> tuple[list[Slot], dict[str, Tensor]]:
    """Where everything goes, and the tensors by the keys which that names."""
    slots: list[Slot] = []
    state: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if isinstance(value, Tensor):
            state[name] = value.detach()
            slots.append(whole_slot(name, value))
            continue
        for number, piece in enumerate([value] if isinstance(value, Piece) else value):
            state[key := f"{name}/{number}"] = piece.tensor.detach()
            step = max(1, STRETCH_BYTES // max(1, piece.tensor[:1].nbytes))
            # of a tensor without rows an empty stretch is kept, so that its shape is
            for first in range(0, len(piece.tensor) or int(piece.total == 0), step):
                rows = piece.tensor[first : first + step]
                place = piece.start + first
                slots.append(
                    piece_slot(name, key, number, rows, first=first, place=place, total=piece.total)
                )
    return slots, state


@contextmanager
def _plain_errors(alone: bool) -> Iterator[None]:
    """What went wrong in some process, as an exception of the ordinary kind."""
    try:
        yield
    except CheckpointException as failed:
        rank, (cause, _) = min(failed.failures.items(), key=lambda failure: failure[0])
        if isinstance(cause, OSError):
            number = cause.errno or errno.EIO
            words = cause.strerror or os.strerror(number)
            raise OSError(number, words if alone else f"{words} on rank {rank}") from failed
        raise cause from failed


@contextmanager
def _quiet() -> Iterator[None]:
    """One process is what was meant, and need not be warned of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield
