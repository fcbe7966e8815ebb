"""Files that a command is given: regular files that can be read."""

import os
import stat
from pathlib import Path

from tapas.errors import UsageError

NAME_ONE = "Name a file"
KINDS = (
    (stat.S_ISDIR, "a folder", "Name a file in it"),
    (stat.S_ISFIFO, "a pipe", "Write what comes out of it to a file, and name that"),
    (stat.S_ISSOCK, "a socket", NAME_ONE),
)
MAX_TEXT_BYTES = 64 * 2**20  # of settings


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
    kind, cure = next((words for is_kind, *words in KINDS if is_kind(mode)), ("a device", NAME_ONE))
    raise UsageError(f"{path} is {kind}; expected a file. {cure}.")
