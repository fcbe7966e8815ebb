"""Checksums of files, of JSON records and of texts, and finding damage with them.

A file has its size and the BLAKE2b of all its bytes (as `b2sum` prints it), a large one also short
checksums of its blocks, so that some of them can be checked without reading everything. A record
or text carries its checksum in itself, so that it can be replaced in one step.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import SystemRandom
from threading import Event
from typing import Any, BinaryIO, TypeAlias

from tapas.errors import DataError
from tapas.json_toml import parse_json
from tapas.regular_file import check_stored, open_stored, read_stored

BLOCK_BYTES = 4 << 20
SMALL_BYTES = 64 << 20  # files up to this size have no blocks and are always checked in full
SAMPLED_BLOCKS = 8  # checked when a large file is opened, besides the first and the last block
DIGITS = 16  # of the checksum of a block, hexadecimal
NAME, PREFIX = "checksum", "blake2b:"
FICLONE = 0x40049409  # ioctl of Linux: share the blocks of a file until one of both is changed

Checksum: TypeAlias = dict[str, Any]  # "bytes", "blake2b", and for large files "blocks"


def checksum(path: Path) -> Checksum:
    """The checksum of a file, which may be larger than memory."""
    with open_stored(path) as file:
        return _checksum(_chunks(file))


def copy_with_checksum(source: Path, target: Path) -> Checksum:
    """Copy a file to the new file `target` and return the checksum of what was read.

    The copy shares no bytes with `source` that a change of one could reach in the other; where the
    file system can, it costs no space until then. `target` is not flushed to disk.
    """
    with open_stored(source) as read, target.open("xb") as written:
        try:
            fcntl.ioctl(written, FICLONE, read.fileno())
        except OSError:  # most file systems cannot
            return _checksum(_copied(read, written))
        return _checksum(_chunks(read))


def _copied(read: BinaryIO, written: BinaryIO) -> Iterator[bytes]:
    for chunk in _chunks(read):
        written.write(chunk)
        yield chunk


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(BLOCK_BYTES):
        yield chunk


def _checksum(chunks: Iterator[bytes]) -> Checksum:
    whole, blocks, num_bytes = blake2b(), "", 0
    with ThreadPoolExecutor(1) as second:  # hashing releases the GIL
        for chunk in chunks:
            updating = second.submit(whole.update, chunk)
            blocks += _short(chunk)
            num_bytes += len(chunk)
            updating.result()
    found: Checksum = {"bytes": num_bytes, "blake2b": whole.hexdigest()}
    return found if num_bytes <= SMALL_BYTES else {**found, "blocks": blocks}


def _short(content: bytes) -> str:
    return blake2b(content, digest_size=DIGITS // 2).hexdigest()


def is_checksum(value: object) -> bool:
    """Whether `value`, read from a file, has the form of a checksum."""
    if not isinstance(value, dict):
        return False
    size, blocks = value.get("bytes"), value.get("blocks")
    if type(size) is not int or size < 0 or not isinstance(value.get("blake2b"), str):
        return False
    return blocks is None or (
        isinstance(blocks, str) and len(blocks) == DIGITS * -(-size // BLOCK_BYTES)
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a file that is checked at once."""

    start: int
    num_bytes: int
    blake2b: str


def find_damage(
    files: Mapping[Path, Checksum],
    *,
    everything: bool = False,
    on_bytes: Callable[[int], None] = lambda num_bytes: None,
) -> dict[Path, str]:
    """What is wrong with `files`, a sentence for each damaged one.

    Small files are checked in full. Of large ones the size, the first, the last and some random
    blocks are checked, or all with `everything`. `on_bytes` is called with the size of each piece
    that was read. The work is shared by threads.
    """
    problems: dict[Path, str] = {}
    pieces: list[tuple[Path, _Piece]] = []
    for path, expected in files.items():
        if (problem := _wrong_size(path, expected["bytes"])) is not None:
            problems[path] = problem
        else:
            pieces += [(path, piece) for piece in _pieces(expected, everything)]
    stop = Event()
    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    try:
        found = pool.map(lambda each: _wrong_bytes(each[0], each[1], stop), pieces)
        for (path, piece), problem in zip(pieces, found, strict=True):
            on_bytes(piece.num_bytes)
            if problem is not None:
                problems.setdefault(path, problem)
    finally:
        stop.set()  # after Ctrl-C
        pool.shutdown(cancel_futures=True)
    return {path: problems[path] for path in files if path in problems}


def check_files(files: Mapping[Path, Checksum], *, everything: bool = False) -> None:
    """Raise DataError for the first damaged one of `files`; see `find_damage`."""
    for problem in find_damage(files, everything=everything).values():
        raise DataError(problem)


def check_sizes(files: Mapping[Path, Checksum]) -> None:
    """Raise DataError for the first one of `files` that is missing or of another size."""
    for path, expected in files.items():
        if (problem := _wrong_size(path, expected["bytes"])) is not None:
            raise DataError(problem)


def _wrong_size(path: Path, expected: int) -> str | None:
    try:
        num_bytes = check_stored(path).stat().st_size
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    except DataError as error:
        return str(error)
    if num_bytes != expected:
        return f"{path} is damaged: {num_bytes:,} bytes; expected {expected:,}."
    return None


def _pieces(expected: Checksum, everything: bool) -> list[_Piece]:
    size, blocks = expected["bytes"], expected.get("blocks")
    if not blocks:
        return [_Piece(0, size, expected["blake2b"])]
    num_blocks = len(blocks) // DIGITS
    chosen = list(range(num_blocks))
    if not everything and num_blocks > SAMPLED_BLOCKS + 2:
        chosen = [0, *SystemRandom().sample(chosen[1:-1], SAMPLED_BLOCKS), num_blocks - 1]
    return [
        _Piece(
            number * BLOCK_BYTES,
            min(BLOCK_BYTES, size - number * BLOCK_BYTES),
            blocks[number * DIGITS : (number + 1) * DIGITS],
        )
        for number in chosen
    ]


def _wrong_bytes(path: Path, piece: _Piece, stop: Event) -> str | None:
    digest, left = blake2b(digest_size=max(1, min(64, len(piece.blake2b) // 2))), piece.num_bytes
    try:
        with open_stored(path) as file:
            file.seek(piece.start)
            while left and not stop.is_set() and (chunk := file.read(min(left, BLOCK_BYTES))):
                digest.update(chunk)
                left -= len(chunk)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    if digest.hexdigest() != piece.blake2b:
        return differs(path)
    return None


def differs(path: Path) -> str:
    """The sentence for a file or record whose checksum is wrong."""
    return f"{path} is damaged: its checksum differs from the one it was saved with."


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, without its checksum; DataError if it is damaged.

    Files of earlier versions, which have none, are accepted: see `has_checksum`.
    """
    try:
        return parse_record(read_stored(path))
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except WrongChecksumError:
        raise DataError(differs(path)) from None
    except ValueError:
        raise not_as_saved(path) from None


def not_as_saved(path: Path) -> DataError:
    """The error for a file whose JSON has not what was written, though its checksum is right."""
    return DataError(f"{path} is damaged: it is not the JSON that was saved.")


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write `record` with its checksum; it is not flushed to disk."""
    path.write_text(json.dumps(with_checksum(record), indent=1) + "\n", encoding="utf-8")


class WrongChecksumError(ValueError):
    """A record or text differs from what was saved."""


def with_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """`record` with its checksum, to be written as JSON."""
    return {**record, NAME: PREFIX + _record_digest(json.loads(json.dumps(record)))}


def parse_record(text: str) -> dict[str, Any]:
    """The JSON object `text` without its checksum; WrongChecksumError if that is wrong.

    Raises ValueError if it is no JSON object.
    """
    record = parse_json(text)
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    found = record.pop(NAME, None)
    # damage to the name of the checksum must not make it a record of an earlier version
    texts = (value for value in record.values() if isinstance(value, str))
    if found is None and not any(text.startswith(PREFIX) for text in texts):
        return record
    if found != PREFIX + _record_digest(record):
        raise WrongChecksumError
    return record


def has_checksum(path: Path) -> bool:
    """Whether the JSON object in `path`, which was read before, carries a checksum."""
    return NAME in parse_json(read_stored(path))


def _record_digest(record: Mapping[str, Any]) -> str:
    return _digest(json.dumps(record, sort_keys=True))


def text_with_checksum(text: str, owner: str) -> str:
    """`text` after a comment line with its checksum, which also depends on the name `owner`."""
    found = PREFIX + _digest(f"{owner}\n{text}")
    return f"# {NAME} {found} of what follows: delete this line if you change it\n{text}"


def check_text(text: str, owner: str) -> bool:
    """Whether `text` begins with its checksum; WrongChecksumError if that is wrong."""
    line, _, rest = text.partition("\n")
    if NAME not in line and PREFIX not in line:  # one of them if the other is damaged
        return False
    if text_with_checksum(rest, owner) != text:
        raise WrongChecksumError
    return True


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
