"""The files of one checkpoint: writing, reading and verifying them.

    rows-<j>.safetensors   the rows of class tables that process j keeps
    dense.safetensors      all other tensors, which are the same in every process
    state.json             written last: sizes and checksums of the files above, which rows are in
                           which file, and everything that is not a tensor

No file is pickled, so loading one cannot run code.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tapas.atomic_file import sync, usual_mode
from tapas.checksums import (
    Checksum,
    check_files,
    check_sizes,
    checksum,
    is_checksum,
    not_as_saved,
    read_json,
    write_json,
)
from tapas.errors import DataError, TapasError, UsageError
from tapas.regular_file import check_stored
from tapas.shapes import check_tensor
from tapas.version import __version__, check_format

FORMAT = 1
DENSE, STATE = "dense.safetensors", "state.json"
NAME = re.compile(r"(rows-\d+|dense)\.safetensors")
FINISHED = re.compile(r"step-(?P<step>\d{8,})|\.step-(?P<replaced>\d{8,})\.[0-9a-f]+\.replaced")
JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
Checksums: TypeAlias = dict[str, Checksum]  # by file name


def rows_file(number: int) -> str:
    """File name of the rows of process `number`."""
    return f"rows-{number}.safetensors"


def write_file(folder: Path, name: str, tensors: dict[str, Tensor]) -> Checksums:
    """Write one file and flush it to disk. Raises OSError if it cannot be written."""
    file = folder / name
    try:
        with usual_mode(file):
            save_file(tensors, file)
    except SafetensorError as error:  # its message contains the errno
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    sync(file)
    return {name: checksum(file)}


def write_state(folder: Path, record: Mapping[str, Any]) -> None:
    """Write state.json, which completes the checkpoint. Raises OSError if it cannot be written."""
    files: Checksums = {name: dict(each) for name, each in record["files"].items()}
    # beside the files, where tapas 0.1.0 does not look
    blocks = {name: each.pop("blocks") for name, each in files.items() if "blocks" in each}
    made = {"format": FORMAT, "tapas": __version__, **record, "files": files, "blocks": blocks}
    write_json(folder / STATE, made)
    for path in (folder / STATE, folder):
        sync(path)


def verify(
    folder: Path, *, reader: int = 0, num_readers: int = 1, everything: bool = True
) -> dict[str, Any]:
    """Return the content of state.json, or raise DataError if a file is damaged.

    If `num_readers` processes load at the same time, they share the work: number `reader` verifies
    the checksums of files reader, reader + num_readers, and so on. Each verifies all sizes. Of
    files above 64 MB only some blocks are checked unless `everything` is to be.
    """
    if not 0 <= reader < num_readers:
        raise UsageError(f"reader must be one of 0 to {num_readers - 1}, got {reader}.")
    record = read_record(folder)
    files = checkpoint_files(folder, record)
    check_sizes(files)
    mine = [*files][reader::num_readers]
    check_files({path: files[path] for path in mine}, everything=everything)
    return record


def checkpoint_files(folder: Path, record: Mapping[str, Any]) -> dict[Path, Checksum]:
    """The checksums of the files that `record`, a state.json, lists."""
    blocks = record.get("blocks", {})
    return {
        folder / name: {**each, "blocks": blocks[name]} if name in blocks else each
        for name, each in record["files"].items()
    }


def read_record(folder: Path) -> dict[str, Any]:
    """The content of state.json. Raises DataError if it is damaged, UsageError if it is newer."""
    file = folder / STATE
    record = read_json(file)
    check_format(file, record, "checkpoint", FORMAT)
    try:
        _check_record(folder, record)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise not_as_saved(file) from None
    step, name = record["step"], FINISHED.fullmatch(folder.name)
    if name and int(name["step"] or name["replaced"]) != step:
        raise DataError(
            f"{file} is that of step {step}, not of the step that its folder is named after. "
            f"Rename the folder to step-{step:08} if it was renamed by mistake."
        )
    return record


def _check_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Raise an error of any kind if `record` lacks something that is read later."""
    _ = [record[name] for name in ("tapas", "state", "optimizers")]
    if not all(isinstance(each, dict) for each in record["numbers"].values()):
        raise ValueError("numbers")
    if type(record["step"]) is not int or record["step"] < 0 or type(record["best"]) is not bool:
        raise ValueError("step or best")
    files: Checksums = record["files"]
    if DENSE not in files:
        raise ValueError(DENSE)
    for path, expected in checkpoint_files(folder, record).items():
        if not NAME.fullmatch(path.name) or path.parent != folder or not is_checksum(expected):
            raise ValueError(path)
    for table in record["tables"].values():
        _ = table["order"]["kind"], table["order"]["seed"]
        for each in table["tensors"].values():
            if not isinstance(getattr(torch, each["dtype"]), torch.dtype):
                raise ValueError(each["dtype"])
            num_rows, *others = each["shape"]
            if num_rows not in (0, table["num_classes"]) or any(size < 0 for size in others):
                raise ValueError(each["shape"])
        ranges = table["ranges"]
        bounds = [0, *(stop for _, _, stop in ranges)]
        if (
            any(file not in files for file, _, _ in ranges)
            or [start for _, start, _ in ranges] != bounds[:-1]
            or any(start > stop for start, stop in pairwise(bounds))
            or bounds[-1] != table["num_classes"]
        ):
            raise ValueError("the ranges do not cover the table")


def read_dense(folder: Path, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """The tensors outside of tables; DataError if the file cannot be read."""
    try:
        return load_file(check_stored(folder / DENSE), device=str(device))
    except (SafetensorError, OSError) as error:
        raise DataError(f"{folder / DENSE} cannot be read: {error}.") from error


def complete_in(folder: Path) -> dict[int, Path]:
    """Complete checkpoints by step; one that is being replaced counts until its successor does."""
    found = {}
    if folder.is_dir():
        for path in sorted(folder.iterdir()):  # hidden names come first
            if match := FINISHED.fullmatch(path.name):
                found[int(match["step"] or match["replaced"])] = path
    return found


def newest_valid(complete: Mapping[int, Path]) -> int | None:
    """The newest step whose files pass all checks; None if there is none."""
    for step in sorted(complete, reverse=True):
        with suppress(TapasError, OSError):
            verify(complete[step])
            return step
    return None


def suggest_other(complete: Mapping[int, Path]) -> str:
    """A sentence about what to use instead of a damaged checkpoint."""
    if (other := newest_valid(complete)) is not None:
        return f"Step {other} is valid: use it with --step {other}."
    return "No other checkpoint is valid: start again without --resume, in another --out."


def unshare(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors`, contiguous and without shared memory. Copies only where necessary."""
    found = {name: _storable(name, tensor) for name, tensor in tensors.items()}
    used: dict[torch.device, int] = {}  # end of the memory that earlier tensors occupy
    for name in sorted(found, key=lambda name: (found[name].data_ptr(), -found[name].nbytes)):
        start, end = found[name].data_ptr(), found[name].data_ptr() + found[name].nbytes
        if start == end or start < used.get(found[name].device, 0):
            found[name] = found[name].clone()
        else:
            used[found[name].device] = end
    return found


def _storable(name: str, tensor: Tensor) -> Tensor:
    """Return `tensor`, contiguous, or raise UsageError if safetensors cannot store it."""
    check_tensor(name, tensor)
    odd_number = tensor.is_quantized or (tensor.is_complex() and tensor.dtype.itemsize != 8)
    if tensor.layout != torch.strided or tensor.is_meta or odd_number:
        raise UsageError(
            f"tensor '{name}' ({tensor.dtype}, {tensor.layout}, {tensor.device}) cannot be "
            "saved: expected a dense tensor, not meta or quantized, and complex64 if complex."
        )
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def check_json(name: str, value: object) -> None:
    """Raise UsageError naming the first value that JSON cannot store without loss."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{name} has the key {key!r}; expected a string. Use str(key).")
            check_json(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            check_json(f"{name}[{place}]", inner)
    elif not isinstance(value, bool | int | float | str | None):
        raise UsageError(
            f"{name} is of type {type(value).__name__}; expected numbers, strings, lists or dicts. "
            "Convert it, or save it as a tensor."
        )
