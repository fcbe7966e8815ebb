"""Reading regular files of bounded size: a pipe or a device may never end.

*Given* files are named by the user. Links to them are followed; what is wrong is a UsageError.

*Stored* files are in a folder that tapas made, or a stranger. Links to files could lead out of the
folder and are refused, as a DataError. The folder may be a link: runs are kept on several disks.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from tapas.errors import DataError, UsageError

MAX_TEXT_BYTES = 64 * 2**20  # of JSON and TOML
KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)
CURES = {  # for given files
    "a folder": "Name a file in it.",
    "a pipe": "Write what comes out of it to a file, and name that.",
}


def check_given(path: Path) -> None:
    """Raise UsageError unless `path`, or what it links to, is a regular file that can be read.

    Pipes are refused because logs are read more than once, and one without a writer never ends.
    """
    _start(path, 1)


def read_given(path: Path) -> bytes:
    """The content of a short file, after `check_given`."""
    content = _start(path, MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise UsageError(
            f"{path} has more than {MAX_TEXT_BYTES // 2**20} MB; expected a short file."
        )
    return content


def _start(path: Path, num_bytes: int) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            with path.open("rb") as file:
                return file.read(num_bytes)
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.islink(path):
            raise UsageError(f"there is no file {path}.") from None
        target = os.readlink(path)
        raise UsageError(f"{path} is a link to {target}, which does not exist.") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {str(path)!r}: {reason}.") from None
    kind = _kind(mode)
    raise UsageError(f"{path} is {kind}; expected a file. {CURES.get(kind, 'Name a file.')}")


def check_stored(path: Path, *, most_bytes: int | None = None) -> Path:
    """`path`, if a regular file of at most `most_bytes` is there; else DataError.

    For readers that open the path themselves. Raises OSError if there is nothing.
    """
    found = os.lstat(path)
    _check_regular(path, found.st_mode)
    if most_bytes is not None and found.st_size > most_bytes:
        raise _too_large(path, most_bytes)
    return path


def open_stored(path: Path) -> BinaryIO:
    """Open the regular file at `path` for reading; DataError if something else is there."""
    check_stored(path)
    try:
        # if it was exchanged just now, the flags keep this from following a link or waiting
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            _check_regular(path, stat.S_IFLNK)
        raise
    file = os.fdopen(descriptor, "rb")
    try:
        _check_regular(path, os.fstat(descriptor).st_mode)
    except DataError:
        file.close()
        raise
    return file


def read_stored(path: Path) -> str:
    """The content of a UTF-8 file; DataError if it has more than `MAX_TEXT_BYTES`.

    Raises OSError if it cannot be read, ValueError if it is not UTF-8.
    """
    with open_stored(path) as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise _too_large(path, MAX_TEXT_BYTES)
    return content.decode()


def _too_large(path: Path, most_bytes: int) -> DataError:
    return DataError(
        f"{path} has more than {most_bytes // 2**20:,} MB, the most that is read: tapas did not "
        "write it."
    )


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kind = _kind(mode)
    cure = " Links are not followed; `cp -rL` copies a folder without." if kind == "a link" else ""
    raise DataError(f"{path} is {kind}; expected a regular file, as tapas writes it.{cure}")


def _kind(mode: int) -> str:
    return next((kind for is_kind, kind in KINDS if is_kind(mode)), "a device")
