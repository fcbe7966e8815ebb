"""Reading files of a folder that somebody else may have made: regular files of bounded size.

A link could lead out of the folder, a named pipe or a device would never end, and a huge text
would fill the memory. Folders may be links: runs are kept on several disks.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from tapas.errors import DataError

MAX_TEXT_BYTES = 64 * 2**20  # of JSON and TOML
KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def checked(path: Path, *, most_bytes: int | None = None) -> Path:
    """`path`, if a regular file of at most `most_bytes` is there; else DataError.

    For readers that open the path themselves. Raises OSError if there is nothing.
    """
    found = os.lstat(path)
    _check_regular(path, found.st_mode)
    if most_bytes is not None and found.st_size > most_bytes:
        raise _too_large(path, most_bytes)
    return path


def open_file(path: Path) -> BinaryIO:
    """Open the regular file at `path` for reading; DataError if something else is there."""
    checked(path)
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


def read_text(path: Path, *, most_bytes: int = MAX_TEXT_BYTES) -> str:
    """The content of a UTF-8 file; DataError if it has more than `most_bytes`.

    Raises OSError if it cannot be read, ValueError if it is not UTF-8.
    """
    with open_file(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise _too_large(path, most_bytes)
    return content.decode()


def _too_large(path: Path, most_bytes: int) -> DataError:
    return DataError(
        f"{path} has more than {most_bytes // 2**20:,} MB, the most that is read: tapas did not "
        "write it."
    )


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((name for is_kind, name in KINDS if is_kind(mode)), "a device")
    cure = " Links are not followed; `cp -rL` copies a folder without." if kind == "a link" else ""
    raise DataError(f"{path} is {kind}; expected a regular file, as tapas writes it.{cure}")
