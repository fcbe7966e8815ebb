"""The cache of prepared logs: what is in it, marking logs as used, and emptying it."""

import fcntl
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tapas.atomic_file import is_private, private_folder
from tapas.data.event_log import ARRAYS, DESCRIPTION, VOCABULARIES, WEIGHTS
from tapas.errors import UsageError
from tapas.json_toml import parse_json
from tapas.regular_file import check_stored, read_stored

KEY = re.compile(r"[0-9a-f]{32}")  # name of the folder of a prepared log
FILES = {DESCRIPTION, *VOCABULARIES.values(), *(f"{name}.npy" for name in (*ARRAYS, WEIGHTS))}

_held: dict[Path, int] = {}  # open files, locked while this process runs


@dataclass(frozen=True, slots=True)
class PreparedLog:
    """A log in the cache."""

    folder: Path
    files: tuple[str, ...]  # that it was read from; empty if unknown
    last_used: datetime
    num_bytes: int


def mark_used(folder: Path) -> None:
    """Note the time, and keep other processes from removing the log until this one ends."""
    with suppress(OSError):  # the folder may be read-only
        if folder in _held:
            os.close(_held.pop(folder))
        descriptor = os.open(check_stored(folder / DESCRIPTION), os.O_RDONLY)
        _held[folder] = descriptor
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.utime(folder)


def prepared_logs(cache: Path) -> list[PreparedLog]:
    """The prepared logs in the folder `cache`, the latest used first."""
    if not cache.exists():
        return []
    try:
        found = [_describe(path) for path in cache.iterdir() if _is_ours(path)]
    except OSError as error:
        raise UsageError(f"cannot read the cache {cache}: {error.strerror}.") from error
    return sorted(found, key=lambda log: (log.last_used, log.folder), reverse=True)


def num_others(cache: Path) -> int:
    """How many files and folders in `cache` are no prepared logs, and are never removed."""
    if not cache.exists():
        return 0
    return sum(not _is_ours(path) and not is_private(path) for path in cache.iterdir())


def remove(log: PreparedLog) -> bool:
    """Remove the log from the cache, unless a process uses it; returns whether it was removed."""
    try:
        # NFS locks only what is open for writing
        with check_stored(log.folder / DESCRIPTION).open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            discard(log.folder)
    except FileNotFoundError:  # another process was faster
        return True
    except OSError as error:
        raise _cannot_remove(log.folder, error) from error
    return True


def discard(folder: Path) -> None:
    """Remove the log in `folder`; a process that has opened its files can still read them."""
    try:
        with private_folder(folder) as private:
            folder.rename(private / "removed")  # at once, so that no process finds half of it
    except FileNotFoundError:  # another process was faster
        pass
    except OSError as error:
        raise _cannot_remove(folder, error) from error


def _cannot_remove(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot remove {folder}: {error.strerror}.")


def _is_ours(path: Path) -> bool:
    if not KEY.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
        return False
    names = {file.name for file in path.iterdir()}
    return DESCRIPTION in names and names <= FILES


def _describe(folder: Path) -> PreparedLog:
    files: tuple[str, ...] = ()
    with suppress(ValueError, KeyError, TypeError, OSError):  # of an earlier version, or damaged
        files = tuple(parse_json(read_stored(folder / DESCRIPTION))["report"]["files"])
    return PreparedLog(
        folder=folder,
        files=files,
        last_used=datetime.fromtimestamp(folder.stat().st_mtime).astimezone(),
        num_bytes=sum(file.stat().st_size for file in folder.iterdir()),
    )
