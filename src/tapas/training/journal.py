"""The journal of a run: evaluations and other events as JSON lines and TensorBoard scalars.

{"step": 400, "event": "evaluate", "time": "2026-11-17T09:30:00+01:00", "train_loss": 3.25, ...}

Each line ends with its own checksum.
"""

import errno
import json
import math
import os
import time
import warnings
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tapas.atomic_file import make_folder, sync, unfinished_file
from tapas.checksums import NAME, WrongChecksumError, parse_record, with_checksum
from tapas.errors import DataError, UsageError
from tapas.json_toml import parse_json
from tapas.regular_file import check_stored

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

JOURNAL = "journal.jsonl"
SETTING = "setting"  # event: a setting that was not given, with its value and the reason
END = "end"  # event: a process has trained to the end or was interrupted
MAX_BYTES = 2**30  # of a journal that is read
Value = float | int | str | None


class Journal:
    """Writes one JSON object per line: {"step": ..., "event": ..., "time": ..., **numbers}.

    With `tensorboard`, the same numbers are written as scalars named event/number. An existing
    journal is continued; with `resume_at`, entries of later steps are removed first, here and in
    TensorBoard. An incomplete last line, left by a killed process, is always removed.
    """

    def __init__(self, folder: Path, *, resume_at: int | None = None, tensorboard: bool = True):
        self.path = Path(folder) / JOURNAL
        try:
            make_folder(self.path.parent)
            if os.path.lexists(self.path):
                _drop_after(self.path, resume_at)
            self._file = self.path.open("ab", buffering=0)
            sync(self.path.parent)
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        self._scalars = _scalars(self.path.parent, resume_at) if tensorboard else None

    def write(self, step: int, event: str, **numbers: Value) -> None:
        """Append one line and flush it to disk.

        NaN and inf are not valid JSON: they are written as null and listed in `not_finite`.
        """
        if self._file.closed:
            raise UsageError(f"{self.path} is closed: cannot write '{event}' of step {step}.")
        plain = {name: _plain(name, value) for name, value in numbers.items()}
        odd = {name: value for name, value in plain.items() if not _finite(value)}
        if odd:
            plain |= dict.fromkeys(odd)
            plain["not_finite"] = ", ".join(f"{name}={value}" for name, value in odd.items())
        now = datetime.now().astimezone().isoformat(timespec="seconds")  # with the offset to UTC
        entry = {"step": int(step), "event": event, "time": now, **plain}
        self._append(json.dumps(with_checksum(entry)) + "\n")
        if self._scalars is not None:
            for name, value in (plain | odd).items():
                if isinstance(value, int | float):
                    self._scalars.add_scalar(f"{event}/{name}", value, global_step=int(step))

    def check(self) -> None:
        """Raise UsageError if the file was moved or deleted: further lines would be lost."""
        if not self.path.exists():
            raise UsageError(
                f"{self.path} is gone: the folder was moved or deleted. If it was moved, continue "
                "with --resume at its new place."
            )

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        self._file.close()
        if self._scalars is not None:
            self._scalars.close()
            self._scalars = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _append(self, line: str) -> None:
        """Append the complete line or nothing: a partial line would corrupt the next one."""
        data = line.encode()
        size_bytes = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(size_bytes)
            raise _cannot_write(self.path, error) from error


class NoJournal(Journal):
    """Writes nothing: only the main rank keeps a journal."""

    def __init__(self) -> None:
        pass

    def write(self, step: int, event: str, **numbers: Value) -> None:
        pass

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All lines as dicts, in order. An incomplete last line is left out."""
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path} does not exist. `tapas train` writes one for each run.")
    return [entry for _, entry in _complete_lines(path)]


def check_journal(path: Path) -> str:
    """Why not all lines could be checked, "" if all are; DataError if one is damaged."""
    lines = [line for line, _ in _complete_lines(path)]
    if b"".join(line + b"\n" for line in lines) != path.read_bytes():
        return "the last line is incomplete, as after a crash; `tapas train --resume` removes it"
    if any(NAME not in parse_json(line) for line in lines):
        return "no checksum in lines that an earlier version wrote"
    return ""


def _complete_lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """All complete lines and what they say; DataError for one that is damaged."""
    *lines, last = check_stored(path, most_bytes=MAX_BYTES).read_bytes().split(b"\n")
    found: list[tuple[bytes, dict[str, Any]]] = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append((line, _entry(line)))
        except ValueError as error:
            wrong = "not a JSON object with an integer step"
            if isinstance(error, WrongChecksumError):
                wrong = "damaged, its checksum differs from the one it was saved with"
            raise DataError(
                f"{path}, line {number}: {wrong}. Remove that line, or move the file away."
            ) from None
    with suppress(ValueError):
        found.append((last, _entry(last)))
    return found


def _entry(line: bytes) -> dict[str, Any]:
    """What a line says, without its checksum; ValueError if it is damaged."""
    entry = parse_record(line.decode())
    if type(entry.get("step")) is not int:
        raise ValueError("no step")
    return entry


def _drop_after(path: Path, step: int | None) -> None:
    """Rewrite the file without an incomplete last line and without steps after `step`."""
    lines = _complete_lines(path)
    kept = (line for line, entry in lines if step is None or entry["step"] <= step)
    content = b"".join(line + b"\n" for line in kept)
    if content == path.read_bytes():
        return
    with unfinished_file(path) as unfinished:
        unfinished.write_bytes(content)


def _cannot_write(path: Path, error: OSError) -> UsageError:
    full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    cure = "Free some space" if full else "Make sure that it can be written to"
    return UsageError(
        f"cannot write to {path}: {error.strerror}. {cure} and continue with --resume."
    )


def _scalars(folder: Path, resume_at: int | None) -> "SummaryWriter":
    with warnings.catch_warnings():  # some versions warn on import
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        purge_step = None if resume_at is None else resume_at + 1
        _wait_for_next_second(folder / "tensorboard")
        return SummaryWriter(str(folder / "tensorboard"), purge_step=purge_step)


def _wait_for_next_second(folder: Path) -> None:
    """Wait until a new event file, named after the current second, sorts after existing ones."""
    now = int(time.time())
    if any(folder.glob(f"events.out.tfevents.{now}.*")):
        time.sleep(1 - time.time() % 1)


def _plain(name: str, value: object) -> Value:
    """Convert numpy numbers to Python numbers; UsageError for anything that is not plain."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int | float | str | None):
        return value
    raise UsageError(
        f"{name} is of type {type(value).__name__}; expected a number, text or None. "
        "Convert it with float() or .item()."
    )


def _finite(value: Value) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
