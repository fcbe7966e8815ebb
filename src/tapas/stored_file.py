"""Reading files of a folder that somebody else may have made: regular files of bounded size.

A link could lead out of the folder, a named pipe or a device would never end, and a huge text
would fill the memory. Folders may be links: runs are kept on several disks.
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from tapas.errors import DataError

MAX_TEXT_BYTES = 64 * 2**20  # of JSON and TOML
KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def file_bytes(path: Path) -> int:
    """The size of the regular file at `path`; DataError if something else is there.

    For readers that open the path themselves. Raises OSError if there is nothing.
    """
    found = os.lstat(path)
    _check_regular(path, found.st_mode)
    return found.st_size


def open_file(path: Path) -> BinaryIO:
    """Open the regular file at `path` for reading; DataError if something else is there."""
    file_bytes(path)
    try:
        # if it was replaced just now, the flags keep this from following a link or waiting
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


def read_bytes(path: Path, *, most_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """The content of a file; DataError if it has more than `most_bytes`. Raises OSError."""
    with open_file(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise DataError(
            f"{path} has more than {most_bytes // 2**20:,} MB, the most that is read: tapas did "
            "not write it."
        )
    return content


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises OSError, ValueError if it is no JSON, or DataError."""
    try:
        return json.loads(read_bytes(path).decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((name for is_kind, name in KINDS if is_kind(mode)), "a device")
    cure = "Copy the folder with `cp -rL`" if kind == "a link" else "Get the folder again"
    raise DataError(
        f"{path} is {kind}, which is not read; expected a file. {cure}, or leave it alone if you "
        "do not know who made it."
    )
