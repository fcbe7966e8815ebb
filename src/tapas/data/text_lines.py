"""Lines of a text file, whatever its encoding and compression."""

import codecs
import gzip
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import polars as pl

from tapas.data.local_files import literal
from tapas.errors import DataError
from tapas.signals import defer_signals

UTF8, UTF16, WINDOWS = "utf-8", "utf-16", "cp1252"
NUM_LINES = 100  # that are looked at
START_BYTES = 1 << 20  # in which the encoding is looked for


def read_start(path: Path) -> tuple[str, list[str]]:
    """The encoding of a file and its first lines.

    UTF-16 is known by its mark, as Excel writes it; anything else is UTF-8, or Windows-1252 if the
    start of the file is not UTF-8. A file compressed by zst is taken for UTF-8.
    """
    suffix = path.suffix.lower()
    if suffix == ".zst":
        return UTF8, list(islice(text_lines(path), NUM_LINES))
    try:
        with gzip.open(path) if suffix == ".gz" else path.open("rb") as file:
            start = file.read(START_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = UTF16
    else:
        try:
            codecs.getincrementaldecoder(UTF8)().decode(start)
            encoding = UTF8
        except UnicodeDecodeError:
            encoding = WINDOWS
    text = start.decode(encoding, errors="replace")
    text = text if encoding == UTF8 else _with_line_feeds(text)
    lines = text.split("\n", NUM_LINES)[:NUM_LINES]
    if "\0" in lines[0]:  # of UTF-16 without a mark, of UTF-32, or no text at all
        raise _no_text(path)
    return encoding, lines


def text_lines(path: Path, encoding: str = UTF8) -> Iterator[str]:
    """The lines of a file without their ends; UTF-8 is read in blocks, others as a whole."""
    if encoding != UTF8:
        text = _with_line_feeds(_decoded(path, encoding))
        yield from text.removesuffix("\n").split("\n")
        return
    start, size = 0, 1000
    while True:
        block = collected(path, scan(pl.scan_lines, path).slice(start, size))
        yield from block.to_series()
        if block.height < size:
            return
        start, size = start + size, min(16 * size, 1 << 22)


def _with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decoded(path: Path, encoding: str) -> str:
    try:
        content = path.read_bytes()
        if path.suffix.lower() == ".gz":
            content = gzip.decompress(content)
        return content.decode(encoding)
    except UnicodeDecodeError:
        raise _no_text(path) from None
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None


def _no_text(path: Path) -> DataError:
    return DataError(f"{path} is neither UTF-8 nor Windows-1252 text. Save it as UTF-8.")


def scan(kind: Callable[..., pl.LazyFrame], path: Path, **options: object) -> pl.LazyFrame:
    with defer_signals():
        return kind(literal(path), glob=False, **options)


def collected(path: Path, frame: pl.LazyFrame) -> pl.DataFrame:
    try:
        return frame.collect(engine="streaming")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: BaseException) -> DataError:
    reason = str(error).splitlines()[0].rstrip(".")
    return DataError(
        f"{path} cannot be read: {reason}. It may be damaged or truncated; get a new copy."
    )
