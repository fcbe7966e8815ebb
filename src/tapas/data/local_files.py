"""Names of local files for polars, which would otherwise take some of them for something else."""

import os
from pathlib import Path

from tapas.errors import UsageError


def literal(path: str | Path) -> str:
    """`path` in a form that polars takes for the local file of that name; read with glob=False.

    Polars expands a leading ~ and takes file:... for a URL, but nothing that begins with "./" or
    "/". Names that are not UTF-8 it cannot open at all: they raise UsageError.
    """
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{path}: the name is not UTF-8. Rename the file or folder.") from None
    return os.path.join(os.curdir, path)
