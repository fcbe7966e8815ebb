"""A checkpoint made into another, by one process with whole tables in memory.

    merge     what many ranks saved, as one process saves it
    reshard   what anyone saved, as so many ranks save it

The answer is written under a hidden name and renamed, and the source is never touched.
"""

import os
import re
import shutil
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tapas.atomic_file import fingerprint, sync
from tapas.checkpoints.files import (
    STATE,
    Prints,
    files_in,
    is_sharded,
    read_record,
    seal,
    separate,
    verify,
    write_tensors,
)
from tapas.checkpoints.folder import FULL, CheckpointFolder
from tapas.checkpoints.rows import EXTRA, Table, open_source, read_tensors, tables_in
from tapas.errors import DataError, UsageError
from tapas.shapes import check_positive
from tapas.training.run_folder import CHECKPOINTS

NAMED = re.compile(r"step-(?P<step>\d{8,})")


@dataclass(frozen=True, slots=True)
class Contents:
    """All of a checkpoint in memory, rows by id."""

    record: dict[str, Any]
    tensors: dict[str, Tensor]
    tables: dict[str, Table]

    def spread(self) -> list[str]:
        """Names of the tensors whose rows ranks share; a table that all had whole stays so."""
        names = sorted(name for table in self.tables.values() for name in table.rows)
        if not is_sharded(self.record):
            return names
        return [name for name in names if name in self.record["pieces"]]


def find_checkpoint(path: Path, step: int | None = None) -> Path:
    """The folder of one step at `path`: a run, its checkpoints (the newest), or the step itself."""
    if (path / STATE).exists():
        if step is not None and (number := read_record(path).get("step")) != step:
            raise UsageError(f"{path} is the checkpoint of step {number}, not of step {step}.")
        return path
    for folder in (path / CHECKPOINTS, path):
        there = CheckpointFolder(folder)
        if there.steps():
            return there.find(step)[1]
    if not path.exists():
        raise UsageError(f"there is no folder {path}.")
    raise UsageError(
        f"{path} holds no checkpoint. Expected the folder of a run, its '{CHECKPOINTS}' or one "
        "step of them."
    )


def describe(folder: Path) -> dict[str, Any]:
    """What the checkpoint in `folder` is, and whether it is whole."""
    record = read_record(folder)
    problem, tables = None, []
    try:
        verify(folder)
        with ExitStack() as stack:
            source = open_source(folder, record, stack)
            for table in tables_in(record["state"], source.shapes).values():
                weight = f"{table.prefix}.weight"
                tables.append(
                    {
                        "name": table.prefix,
                        "classes": table.num_classes,
                        "dim": source.shapes[weight][1],
                        "dtype": str(source.stretch(weight, 0, 0).dtype).removeprefix("torch."),
                        "optimizer_state": sorted(
                            {key for _, key in map(table.state_of, table.rows) if key}
                        ),
                        "updates": table.extra["num_updates"],
                    }
                )
    except DataError as error:
        problem = str(error)
    return {
        "path": str(folder),
        "step": record["step"],
        "best": record["best"],
        "format": record["format"],
        "tapas": record["tapas"],
        "layout": record.get("layout", "single"),
        "ranks": record.get("ranks", 1),
        "bytes": sum(each["bytes"] for each in files_in(record).values()),
        "tables": tables,
        "whole": problem is None,
        "problem": problem,
    }


def read_contents(folder: Path) -> Contents:
    """The checkpoint in `folder`, checked."""
    record = verify(folder)
    tensors = read_tensors(folder, record)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return Contents(record, tensors, tables_in(record["state"], shapes))


def merge(folder: Path, out: Path) -> None:
    """Write the checkpoint in `folder` to `out` as one process saves it.

    A table goes on to behave like as many shards as there were ranks, as `num_shards` has it.
    """
    check_out(out, read_record(folder))
    write_out(out, read_contents(folder), num_ranks=None)


def reshard(folder: Path, out: Path, num_ranks: int) -> None:
    """Write the checkpoint in `folder` to `out` as `num_ranks` ranks save it."""
    check_positive("--ranks", num_ranks)
    check_out(out, read_record(folder))
    contents = read_contents(folder)
    if not contents.tables:
        raise UsageError(f"{folder} has no class table: there is nothing to spread over ranks.")
    spread = set(contents.spread())
    for prefix, table in contents.tables.items():
        if spread.intersection(table.rows):
            key = f"{prefix.removeprefix('model')}.{EXTRA}".lstrip(".")
            contents.record["state"]["extra"][key]["num_shards"] = num_ranks
    write_out(out, contents, num_ranks=num_ranks)


def check_out(out: Path, record: dict[str, Any]) -> None:
    """An error if `out` cannot become a checkpoint, before any work is done for it."""
    if out.exists():
        raise UsageError(f"{out} exists already. Choose another --out.")
    named = NAMED.fullmatch(out.name)
    if named and int(named["step"]) != record["step"]:
        raise UsageError(
            f"{out} is named as step {int(named['step'])}, but the checkpoint is of step "
            f"{record['step']}. Call it step-{record['step']:08}."
        )


def write_out(out: Path, contents: Contents, *, num_ranks: int | None) -> None:
    """`contents` in the new folder `out`; in pieces for `num_ranks`, if given."""
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
        unfinished.mkdir(parents=True)
        sharded = None
        if num_ranks is None:
            prints = write_tensors(unfinished, separate(contents.tensors))
        else:
            sharded = {"ranks": num_ranks, "pieces": contents.spread()}
            prints = _write_pieces(unfinished, contents, num_ranks)
        kept = {name: contents.record[name] for name in ("step", "best", "state")}
        seal(unfinished, prints, kept, sharded=sharded)
        unfinished.rename(out)
        with suppress(OSError):  # it is whole and has its name
            sync(out.parent)
    except OSError as error:
        cure = "Free some space" if error.errno in FULL else "Choose another --out"
        raise UsageError(
            f"cannot write {out}: {error.strerror}. {cure}; nothing was left behind."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_pieces(folder: Path, contents: Contents, num_ranks: int) -> Prints:
    from tapas.checkpoints.pieces import Piece, Pieces, files_of, save_pieces

    tensors: dict[str, Pieces] = dict(contents.tensors)
    for table in contents.tables.values():
        order = table.placement(num_ranks)
        for name in set(contents.spread()).intersection(table.rows):
            rows = contents.tensors[name][order.ids_at(_all(table.num_classes))]
            cuts = [order.start(shard) for shard in range(num_ranks + 1)]
            tensors[name] = [
                Piece(rows[start:stop], start, table.num_classes) for start, stop in pairwise(cuts)
            ]
    save_pieces(folder, tensors, alone=True)
    return {file.name: fingerprint(file) for file in files_of(folder)}


def _all(num_classes: int) -> Tensor:
    return torch.arange(num_classes, device="cpu")
