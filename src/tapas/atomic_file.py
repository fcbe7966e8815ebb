"""Files that are whole or not there: written under another name, then renamed."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tapas.errors import UsageError


@contextmanager
def atomic_write(path: Path, suffix: str = "") -> Iterator[Path]:
    """A name beside `path` to write to; it becomes `path` once all is on the disk.

    If the block raises, or the disk is full, nothing is left behind and an older file at
    `path` stays as it was. `suffix` is the ending that `path` must have, if any.
    """
    if suffix and path.suffix != suffix:
        raise UsageError(f"{path} must end in {suffix}. Call it {path.with_suffix(suffix).name}.")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}. Make it first.")
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}.unfinished{path.suffix}")
    try:
        yield unfinished
        sync(unfinished)
        unfinished.replace(path)
        sync(path.parent)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}. Free some space or choose another "
            "place; nothing was left behind."
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def check_exists(path: Path) -> None:
    """An error that names the file, before a library says it in its own way."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}.")


def sync(path: Path) -> None:
    """Return once `path`, a file or a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path) -> dict[str, Any]:
    """Size and checksum of a file, read in pieces: it may be larger than memory."""
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "blake2b").hexdigest()
    return {"bytes": path.stat().st_size, "blake2b": digest}


class OutputFolder:
    """Makes `folder`, and writes a small file there and back to be sure that it can."""

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = self._unfinished("probe")
            probe.write_bytes(b"?")
            probe.unlink()
        except OSError as error:
            raise self._refusal(error) from error

    def write(self, files: dict[str, bytes]) -> None:
        """All of `files` (name: content), or none: each is renamed into place when all are there.

        A reader sees the old file or the finished one, never a part.
        """
        try:
            for name, content in files.items():
                with self._unfinished(name).open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            for name in files:
                self._unfinished(name).replace(self.folder / name)
        except OSError as error:
            raise self._refusal(error) from error
        finally:
            for name in files:
                with suppress(OSError):
                    self._unfinished(name).unlink()

    def _unfinished(self, name: str) -> Path:
        return self.folder / f".{name}.{os.getpid()}.unfinished"

    def _refusal(self, error: OSError) -> UsageError:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a file is in the way" if is_file else error.strerror or str(error)
        return UsageError(
            f"cannot write into {self.folder}: {reason}. Choose another folder with --out."
        )
