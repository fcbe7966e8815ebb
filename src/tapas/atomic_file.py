"""Atomic file writes: a file is written under a temporary name, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tapas.errors import UsageError


@contextmanager
def atomic_write(path: Path, suffix: str = "") -> Iterator[Path]:
    """Yield a temporary path to write to; it is renamed to `path` when the block ends.

    If the block raises or the disk is full, the temporary file is removed and an existing file at
    `path` is unchanged. If `suffix` is given, `path` must end in it. Raises UsageError if `path`
    cannot be written.
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
    """Raise a UsageError if there is no file at `path`."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}.")


@contextmanager
def usual_mode(path: Path) -> Iterator[None]:
    """Give the file `path`, written inside, the mode that the umask gives to any other file.

    Some libraries create files that only their owner can read.
    """
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


def sync(path: Path) -> None:
    """Flush the file or folder at `path` to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class OutputFolder:
    """A folder for results, created if needed and tested for write access.

    Raises UsageError if the folder cannot be written to.
    """

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
        """Write `files` (name: content); they are renamed into place once all are on disk.

        A reader sees either the old file or the new one, never a partial one.
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
