"""Damage to files, for tests that it is found."""

import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tapas.checksums import parse_record, read_json, with_checksum

LATER = {
    "run.json": ("id", "files"),
    "log.json": ("files",),
    "state.json": ("blocks",),
    "export.json": ("files", "encoder"),
}


def flock_of_nfs(file: Any, operation: int) -> None:
    """A double of `fcntl.flock`: NFS locks bytes, and exclusively only what is writable."""
    if operation & fcntl.LOCK_EX and not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_RDWR:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


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
    for name in LATER.get(file.name, ()):
        record.pop(name, None)
    file.write_text(json.dumps(record))


def as_earlier_version(run: Path) -> None:
    """Remove from a run what earlier versions do not write."""
    for file in (run / "run.json", run / "log" / "log.json", *run.glob("checkpoints/*/state.json")):
        without_checksum(file)
    config, journal = run / "config.toml", run / "journal.jsonl"
    config.write_text(config.read_text().split("\n", 1)[1])
    if journal.exists():
        lines = [json.dumps(parse_record(line)) for line in journal.read_text().splitlines()]
        journal.write_text("".join(f"{line}\n" for line in lines))


def swap(one: Path, other: Path) -> None:
    """Exchange two files or folders."""
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
