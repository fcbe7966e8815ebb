"""The files of one checkpoint: how they are written, sealed by a record and checked.

tensors.safetensors     of one process: every tensor by its name
__0_0.distcp, .metadata   of many: what each of them held, see tapas.checkpoints.pieces; servers
                        first, then what the process beside them held
state.json              the rest, and the size and checksum of the files above
"""

import errno
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from tapas.atomic_file import fingerprint, sync
from tapas.errors import DataError, TapasError, UsageError
from tapas.shapes import check_tensor
from tapas.version import __version__

ALONE, SHARDED = 1, 2  # formats; what one process saves is read by version 0.1, too
FORMAT = SHARDED
TENSORS, CONTENTS, STATE = "tensors.safetensors", ".metadata", "state.json"
FINISHED = re.compile(r"step-(?P<step>\d{8,})|\.step-(?P<replaced>\d{8,})\.\d+\.replaced")
JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
Prints: TypeAlias = dict[str, dict[str, Any]]  # size and checksum by name of file


def write_tensors(folder: Path, tensors: dict[str, Tensor]) -> Prints:
    """The tensors of one process, on the disk when this returns. OSError if they cannot be."""
    file = folder / TENSORS
    try:
        save_file(tensors, file)
    except SafetensorError as error:  # it keeps the number of the system's error in its words
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    sync(file)
    return {TENSORS: fingerprint(file)}


def seal(
    folder: Path, prints: Prints, record: Mapping[str, Any], *, sharded: Mapping[str, Any] | None
) -> None:
    """Write the record, without which `folder` is no checkpoint. OSError if it cannot be.

    `sharded` is what the record of pieces has beside the rest: how many ranks (or servers) have
    them, and of which tensors.
    """
    made: dict[str, Any] = {"format": ALONE, "tapas": __version__}
    if sharded is None:
        made["tensors"] = prints[TENSORS]
    else:
        made |= {"format": SHARDED, "layout": "sharded", **sharded, "files": prints}
    text = json.dumps(made | dict(record), indent=1) + "\n"
    (folder / STATE).write_text(text, encoding="utf-8")
    for path in (folder / STATE, folder):
        sync(path)


def is_sharded(record: Mapping[str, Any]) -> bool:
    return bool(record["format"] == SHARDED)


def files_in(record: Mapping[str, Any]) -> Prints:
    """Size and checksum of every file that `record` vouches for."""
    prints: Prints = record["files"] if is_sharded(record) else {TENSORS: record["tensors"]}
    return prints


def verify(folder: Path, *, part: int = 0, parts: int = 1) -> dict[str, Any]:
    """The record of a checkpoint whose files are as they were saved, or DataError.

    Of the checksums only each `parts`-th is computed, from number `part` on, and that of the
    contents, which every part reads by.
    """
    if not 0 <= part < parts:
        raise UsageError(f"part must be one of 0 to {parts - 1}, got {part}.")
    record = read_record(folder)
    for number, (name, want) in enumerate(files_in(record).items()):
        file = folder / name
        try:
            size = file.stat().st_size
            if size != want["bytes"]:
                raise DataError(f"{file} is damaged: {size:,} bytes, expected {want['bytes']:,}.")
            mine = number % parts == part or name == CONTENTS
            if mine and fingerprint(file) != want:
                raise DataError(
                    f"{file} is damaged: its checksum is not the one it was saved with."
                )
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}.") from error
    return record


def read_record(folder: Path) -> dict[str, Any]:
    """The content of state.json, or an error naming it."""
    file = folder / STATE
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        version, writer = record["format"], record["tapas"]
        if version <= FORMAT:
            _ = [record[name] for name in ("step", "best", "state")]
            _ = [each["bytes"] for each in files_in(record).values()]
        if version == SHARDED:
            _ = int(record["ranks"]), list(record["pieces"])
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{file} is damaged: not the JSON that was saved.") from None
    if version > FORMAT:
        raise UsageError(
            f"{folder} has checkpoint format {version}, written by tapas {writer}; this is tapas "
            f"{__version__}, which reads formats up to {FORMAT}. Upgrade tapas-softmax to read it."
        )
    return record


def finished_in(folder: Path) -> dict[int, Path]:
    """Checkpoints by step; one moved aside counts as long as its successor is not in place."""
    found = {}
    if folder.is_dir():
        for path in sorted(folder.iterdir()):  # hidden names come first
            if match := FINISHED.fullmatch(path.name):
                found[int(match["step"] or match["replaced"])] = path
    return found


def newest_whole(finished: Mapping[int, Path]) -> int | None:
    """The newest step whose content passes every check."""
    for step in sorted(finished, reverse=True):
        with suppress(TapasError, OSError):
            verify(finished[step])
            return step
    return None


def offer_of(finished: Mapping[int, Path]) -> str:
    """What to take instead of a checkpoint that is damaged."""
    if (other := newest_whole(finished)) is not None:
        return f"Step {other} is whole: take it with --step {other}."
    return "No other checkpoint is whole: start again without --resume, in another --out."


def dense(name: str, tensor: Tensor) -> Tensor:
    """`tensor`, contiguous, or an error if no file can hold it."""
    check_tensor(name, tensor)
    odd_number = tensor.is_quantized or (tensor.is_complex() and tensor.dtype.itemsize != 8)
    if tensor.layout != torch.strided or tensor.is_meta or odd_number:
        raise UsageError(
            f"tensor '{name}' ({tensor.dtype}, {tensor.layout}, {tensor.device}) cannot be "
            "saved: expected a dense tensor with memory, not quantized, complex64 if complex."
        )
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors`, contiguous and without common memory. Only what is not so is copied."""
    apart = {name: dense(name, tensor) for name, tensor in tensors.items()}
    taken: dict[torch.device, int] = {}
    for name in sorted(apart, key=lambda name: (apart[name].data_ptr(), -apart[name].nbytes)):
        start, end = apart[name].data_ptr(), apart[name].data_ptr() + apart[name].nbytes
        if start == end or start < taken.get(apart[name].device, 0):
            apart[name] = apart[name].clone()
        else:
            taken[apart[name].device] = end
    return apart


def check_json(name: str, value: object) -> None:
    """A value that JSON would refuse, or give back as another, is told by its place."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{name} has the key {key!r}; expected text. str() makes it so.")
            check_json(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            check_json(f"{name}[{place}]", inner)
    elif not isinstance(value, bool | int | float | str | None):
        raise UsageError(
            f"{name} is of type {type(value).__name__}; expected numbers, text, lists and dicts. "
            "Convert it, or save it among the tensors."
        )


def at_work(pid: int) -> bool:
    """Whether `pid` is another process, and alive."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM  # somebody else's
    return pid != os.getpid()
