"""Damage to files, for tests that it is found."""

from pathlib import Path


def flip(file: Path, place: int, bit: int = 0) -> None:
    """Flip one bit of byte `place`, counted from the end if negative."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)
