"""Damage to files, for tests that it is found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tapas.checksums import read_json, with_checksum


def flip(file: Path, place: int, bit: int = 0) -> None:
    """Flip one bit of byte `place`, counted from the end if negative."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


def rewrite(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON record, and its checksum with it."""
    change(record := read_json(file))
    file.write_text(json.dumps(with_checksum(record)))


def without_checksum(file: Path) -> None:
    """Make it a record of an earlier version."""
    record = read_json(file)
    for name in ("files", "blocks") if file.name == "log.json" else ("blocks",):
        record.pop(name, None)
    file.write_text(json.dumps(record))
