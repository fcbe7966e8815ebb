"""What tells a file that is as it was written from one that is not."""

import hashlib
from pathlib import Path
from typing import Any


def fingerprint(file: Path) -> dict[str, Any]:
    """Size and checksum, read in pieces: the file may be larger than memory."""
    with file.open("rb") as opened:
        checksum = hashlib.file_digest(opened, "blake2b").hexdigest()
    return {"bytes": file.stat().st_size, "blake2b": checksum}
