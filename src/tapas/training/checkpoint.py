"""Checkpoints on disk: whole or not there. safetensors and JSON, nothing that can run code.

    step-00000400/tensors.safetensors    every tensor by its name
    step-00000400/state.json             the rest, and the size and checksum of the tensors

A checkpoint is written under a hidden name and renamed once it is on the disk, so that a
process killed at any moment leaves either the old ones or the old ones and the new one.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tapas.errors import DataError, TapasError, UsageError
from tapas.shapes import check_positive, check_tensor
from tapas.version import __version__
from tapas.whole_file import sync

FORMAT = 1
TENSORS, STATE = "tensors.safetensors", "state.json"
FINISHED = re.compile(r"step-(?P<step>\d{8,})|\.step-(?P<replaced>\d{8,})\.\d+\.replaced")
LEFTOVER = re.compile(r"\.step-(?P<step>\d{8,})\.(?P<pid>\d+)\.(unfinished|replaced|removed)")
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was saved at `step`. Tensors that shared memory come back apart."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class CheckpointFolder:
    """Checkpoints of one run: whole or not there, the last `keep` and the best.

    One process saves; any number may load meanwhile. Nothing is created before the first save.
    """

    def __init__(self, folder: Path, *, keep: int = 2):
        self.folder = Path(folder)
        self.keep = check_positive("keep", keep)

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, JSON],
        *,
        best: bool = False,
    ) -> Path:
        """Save `tensors` and `state` of `step`, and return their folder once it is on the disk.

        A checkpoint of the same step is replaced. Only then are others removed: all but the
        last `keep` and the best, and those of later steps, which belong to a course the run
        has left by resuming before them. If it cannot be saved, earlier ones are untouched.
        """
        if index(step) < 0:
            raise UsageError(f"step must be at least 0, got {step}.")
        state, apart, target = dict(state), separate(tensors), self._path(step)
        check_json("state", state)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._tidy()
            unfinished = self._hidden(step, "unfinished")
            write(unfinished, apart, {"step": index(step), "best": bool(best), "state": state})
            if target.exists():
                os.rename(target, self._hidden(step, "replaced"))
            os.rename(unfinished, target)
            sync(self.folder)
        except BaseException as error:
            with suppress(OSError):
                self._tidy()
            if isinstance(error, OSError):
                raise UsageError(self._cannot_save(step, error)) from error
            raise
        with suppress(OSError):  # the checkpoint is safe; the next save tries again
            self._tidy()
            self._prune(step)
        return target

    def steps(self) -> list[int]:
        """Steps that were saved to the end, rising. `load` checks their content."""
        return sorted(self._finished())

    def best(self) -> int | None:
        """The last step saved with `best=True`; None if there is none."""
        for step, path in sorted(self._finished().items(), reverse=True):
            with suppress(TapasError):
                if read_record(path)["best"]:
                    return step
        return None

    def load(self, step: int | None = None, *, device: str | torch.device = "cpu") -> Checkpoint:
        """The checkpoint of `step`, by default the newest, checked against size and checksum."""
        finished = self._finished()
        if not finished:
            raise UsageError(f"no checkpoint in {self.folder}. Start without --resume.")
        step = max(finished) if step is None else step
        if step not in finished:
            known = ", ".join(map(str, sorted(finished)))
            raise UsageError(f"no checkpoint of step {step} in {self.folder}. There are: {known}.")
        try:
            record = verify(folder := finished.pop(step))
        except DataError as error:
            offer = "No other checkpoint is whole: start again without --resume."
            if (other := newest_whole(finished)) is not None:
                offer = f"Step {other} is whole: take it with --step {other}."
            raise DataError(f"{error} {offer}") from None
        tensors = load_file(folder / TENSORS, device=str(device))
        return Checkpoint(step, tensors, record["state"])

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08}"

    def _hidden(self, step: int, kind: str) -> Path:
        return self.folder / f".step-{step:08}.{os.getpid()}.{kind}"

    def _finished(self) -> dict[int, Path]:
        """Folders by step; one moved aside counts as long as its successor is not in place."""
        found = {}
        if self.folder.is_dir():
            for path in sorted(self.folder.iterdir()):  # hidden names come first
                if match := FINISHED.fullmatch(path.name):
                    found[int(match["step"] or match["replaced"])] = path
        return found

    def _tidy(self) -> None:
        """Put back or remove what this process, or one that died, left half done."""
        for path in sorted(self.folder.glob(".step-*")):
            match = LEFTOVER.fullmatch(path.name)
            if match is None or at_work(int(match["pid"])):
                continue
            target = self._path(step := int(match["step"]))
            if path.suffix != ".replaced":
                shutil.rmtree(path, ignore_errors=True)
            elif target.exists():
                self._remove(step, path)
            else:
                os.rename(path, target)

    def _prune(self, step: int) -> None:
        finished = self._finished()
        for later in [other for other in finished if other > step]:
            self._remove(later, finished.pop(later))
        kept = {*sorted(finished)[-self.keep :], self.best()}
        for old in finished.keys() - kept:
            self._remove(old, finished[old])

    def _remove(self, step: int, path: Path) -> None:
        """Hide first, so that a checkpoint half removed is never taken for a whole one."""
        os.rename(path, hidden := self._hidden(step, "removed"))
        shutil.rmtree(hidden, ignore_errors=True)

    def _cannot_save(self, step: int, error: OSError) -> str:
        cure = "Free some space" if error.errno in FULL else "Make sure that it can be written to"
        left = f"No checkpoint is whole. {cure} and go on with --resume."
        if (whole := newest_whole(self._finished())) is not None:
            left = f"Checkpoint step {whole} is whole. {cure} and go on with --resume."
        return f"cannot save checkpoint step {step} into {self.folder}: {error.strerror}. {left}"


def write(folder: Path, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Both files of a checkpoint, on the disk when this returns. OSError if they cannot be."""
    folder.mkdir()
    file = folder / TENSORS
    try:
        save_file(tensors, file)
    except SafetensorError as error:  # it keeps the number of the system's error in its words
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    made = {"format": FORMAT, "tapas": __version__, "tensors": fingerprint(file)}
    (folder / STATE).write_text(json.dumps(made | record, indent=1) + "\n", encoding="utf-8")
    for path in (file, folder / STATE, folder):
        sync(path)


def verify(folder: Path) -> dict[str, Any]:
    """The record of a checkpoint whose tensors are as they were saved, or DataError."""
    record, file = read_record(folder), folder / TENSORS
    want = record["tensors"]
    try:
        size = file.stat().st_size
        if size != want["bytes"]:
            raise DataError(f"{file} is damaged: {size:,} bytes, expected {want['bytes']:,}.")
        if fingerprint(file) != want:
            raise DataError(f"{file} is damaged: its checksum is not the one it was saved with.")
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
            _ = record["best"], record["state"], record["tensors"]["bytes"]
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{file} is damaged: not the JSON that was saved.") from None
    if version > FORMAT:
        raise UsageError(
            f"{folder} has checkpoint format {version}, written by tapas {writer}; this is tapas "
            f"{__version__}, which reads formats up to {FORMAT}. Upgrade tapas-softmax to read it."
        )
    return record


def newest_whole(finished: Mapping[int, Path]) -> int | None:
    """The newest step whose content passes every check."""
    for step in sorted(finished, reverse=True):
        with suppress(TapasError, OSError):
            verify(finished[step])
            return step
    return None


def fingerprint(file: Path) -> dict[str, Any]:
    """Size and checksum, read in pieces: the file may be larger than memory."""
    with file.open("rb") as opened:
        checksum = hashlib.file_digest(opened, "blake2b").hexdigest()
    return {"bytes": file.stat().st_size, "blake2b": checksum}


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors`, contiguous and without common memory. Only what is not so is copied."""
    apart = {}
    for name, tensor in tensors.items():
        check_tensor(name, tensor)
        odd_number = tensor.is_quantized or (tensor.is_complex() and tensor.dtype.itemsize != 8)
        if tensor.layout != torch.strided or tensor.is_meta or odd_number:
            raise UsageError(
                f"tensor '{name}' ({tensor.dtype}, {tensor.layout}, {tensor.device}) cannot be "
                "saved: expected a dense tensor with memory, not quantized, complex64 if complex."
            )
        apart[name] = tensor.detach().resolve_conj().resolve_neg().contiguous()
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
