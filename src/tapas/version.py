"""The installed version of tapas-softmax, and which formats of files it reads."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tapas.errors import DataError, UsageError

try:
    __version__ = version("tapas-softmax")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"


def check_format(file: Path, record: Mapping[str, Any], kind: str, newest: int) -> None:
    """Check the format number in `record`, which is the JSON of `file`.

    Raises DataError if it is none, UsageError if it is above `newest`, that of this version.
    """
    found = record.get("format", record.get("format_version"))  # logs have the longer name
    if type(found) is not int or found < 1:
        raise DataError(f"{file} is damaged: its format number is {found!r}.")
    if found > newest:
        writer = f", written by tapas {record['tapas']}" if "tapas" in record else ""
        raise UsageError(
            f"{file.parent} has {kind} format {found}{writer}; this is tapas {__version__}, which "
            f"reads formats up to {newest}. Upgrade tapas-softmax to read it."
        )
