"""What a run did, step by step: JSON lines that any tool reads, and TensorBoard scalars.

{"step": 400, "event": "train", "loss": 3.25, "seconds": 12.5}
"""

import errno
import json
import math
import os
import time
import warnings
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tapas.errors import DataError, UsageError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Value = float | int | str | None


class Journal:
    """One JSON object per line: {"step": ..., "event": "train"|"evaluate"|..., **numbers}.

    The same numbers go to TensorBoard as scalars named event/number, unless told not to.
    A journal that is there already is continued; `resume_at` first drops what it says of
    later steps, here and in TensorBoard. A last line torn by a kill is dropped either way.
    """

    def __init__(self, folder: Path, *, resume_at: int | None = None, tensorboard: bool = True):
        self.path = Path(folder) / "journal.jsonl"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                _drop_after(self.path, resume_at)
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        self._scalars = _scalars(self.path.parent, resume_at) if tensorboard else None

    def write(self, step: int, event: str, **numbers: Value) -> None:
        """Add one line; it is in the file when this returns.

        JSON has no NaN or inf: they become null, and `not_finite` says which they were.
        """
        if self._file.closed:
            raise UsageError(f"{self.path} is closed: step {step}, '{event}' came too late.")
        plain = {name: _plain(name, value) for name, value in numbers.items()}
        odd = {name: value for name, value in plain.items() if not _finite(value)}
        if odd:
            plain |= dict.fromkeys(odd)
            plain["not_finite"] = ", ".join(f"{name}={value}" for name, value in odd.items())
        self._append(json.dumps({"step": int(step), "event": event, **plain}) + "\n")
        if self._scalars is not None:
            for name, value in (plain | odd).items():
                if isinstance(value, int | float):
                    self._scalars.add_scalar(f"{event}/{name}", value, global_step=int(step))

    def check(self) -> None:
        """An error if the file is no longer where it was: what is written now would be lost."""
        if not self.path.exists():
            raise UsageError(
                f"{self.path} is gone: the folder was moved or deleted. Go on with --resume where "
                "it is now."
            )

    def close(self) -> None:
        """Let go of the files. Safe to call twice."""
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
        """The whole line or nothing: half a line would spoil the next."""
        data = line.encode()
        size_bytes = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(size_bytes)
            raise _cannot_write(self.path, error) from error


class NoJournal(Journal):
    """Of a rank whose lines another writes."""

    def __init__(self) -> None:
        pass

    def write(self, step: int, event: str, **numbers: Value) -> None:
        pass

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Every line as a dict, in order. A last line torn by a kill is left out."""
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path} does not exist. `Journal` writes one for each run.")
    return [json.loads(line) for line in _whole_lines(path)]


def _whole_lines(path: Path) -> list[bytes]:
    """Lines without their ends; DataError for one that is not an object with a step."""
    *lines, last = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not _is_entry(line):
            raise DataError(
                f"{path}, line {number}: not a JSON object with a whole number as its step. "
                "Remove that line, or move the file away."
            )
    return [*lines, last] if _is_entry(last) else lines


def _is_entry(line: bytes) -> bool:
    try:
        entry = json.loads(line.decode())
    except ValueError:
        return False
    return isinstance(entry, dict) and type(entry.get("step")) is int


def _drop_after(path: Path, step: int | None) -> None:
    """Rewrite the file without a torn end and, if given, without steps after `step`."""
    lines = _whole_lines(path)
    kept = [line for line in lines if step is None or json.loads(line)["step"] <= step]
    content = b"".join(line + b"\n" for line in kept)
    if content == path.read_bytes():
        return
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def _cannot_write(path: Path, error: OSError) -> UsageError:
    full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    cure = "Free some space" if full else "Make sure that it can be written to"
    return UsageError(f"cannot write to {path}: {error.strerror}. {cure} and go on with --resume.")


def _scalars(folder: Path, resume_at: int | None) -> "SummaryWriter":
    with warnings.catch_warnings():  # slow to import, and talkative under some versions
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        purge_step = None if resume_at is None else resume_at + 1
        _wait_for_a_later_name(folder / "tensorboard")
        return SummaryWriter(str(folder / "tensorboard"), purge_step=purge_step)


def _wait_for_a_later_name(folder: Path) -> None:
    """TensorBoard reads files by name, which has the second; within one, 10 comes before 9."""
    seconds = [int(file.name.split(".")[3]) for file in folder.glob("events.out.tfevents.*")]
    if max(seconds, default=0) == int(time.time()):
        time.sleep(1 - time.time() % 1)


def _plain(name: str, value: object) -> Value:
    """`value` as JSON knows it: numpy's numbers become Python's."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int | float | str | None):
        return value
    raise UsageError(
        f"{name} is of type {type(value).__name__}; expected a number, text or None. "
        "float() or .item() makes a number of it."
    )


def _finite(value: Value) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
