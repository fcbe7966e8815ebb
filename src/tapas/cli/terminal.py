"""Lines and tables for the user, fitted to the width of the terminal."""

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Literal, TextIO

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

WIDE = 160  # columns of a table in a file or a pipe
GAP = 2  # between two columns of a table
LONG_WORD = 24  # longer words in a table are broken where the terminal is narrow


def status(words: str) -> None:
    """Tell the user on stderr what the command is doing, in one line unless on a terminal."""
    typer.echo(wrapped(words, sys.stderr) if sys.stderr.isatty() else words, err=True)


def warn_only(words: str) -> None:
    """As `status` with --quiet: only warnings are printed."""
    if words.startswith("Warning: "):
        status(words)


def say(words: str) -> None:
    """Print a sentence of the answer on stdout."""
    typer.echo(wrapped(words, sys.stdout))


def wrapped(words: str, stream: TextIO, *, indent: str = "") -> str:
    """`words` broken between words at the width of the terminal; later lines begin with `indent`.

    Files and pipes get one long line, so that programs can search it.
    """
    width = terminal_width(stream)
    if width is None:
        return words
    return textwrap.fill(
        words,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )


def printable(key: object) -> str:
    """`key` as text on one line: tabs, line breaks and control characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(key))


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal that `stream` writes to, or of COLUMNS; None for files and pipes."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    return shutil.get_terminal_size().columns if stream.isatty() else None


def print_table(
    heading: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: bool = True,
    title: str | None = None,
) -> None:
    """Print a table; `right` aligns all columns but the first to the right."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        show_edge=False,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    room = terminal_width(sys.stdout) or WIDE
    widths = _column_widths(list(zip(heading, *rows, strict=True)), room)
    for place, (words, width) in enumerate(zip(heading, widths, strict=True)):
        justify: Literal["left", "right"] = "right" if right and place else "left"
        table.add_column(words, justify=justify, width=width, overflow="fold")
    for row in rows:
        table.add_row(*row)
    needed = sum(widths) + GAP * len(widths)  # more than there is: the terminal wraps the lines
    Console(highlight=False, markup=False, width=max(room, needed)).print(table)


def _column_widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Widths of the columns of a table, at most `room` in all if no word has to be cut for it.

    Numbers are never broken; words longer than LONG_WORD are.
    """
    wanted = [max(map(cell_len, cells)) for cells in columns]
    widths = [
        min(LONG_WORD, max(map(cell_len, " ".join(cells).split()), default=0)) for cells in columns
    ]
    spare = room - sum(widths) - GAP * (len(widths) - 1)
    while spare > 0 and widths != wanted:
        missing = [most - width for most, width in zip(wanted, widths, strict=True)]
        widths[missing.index(max(missing))] += 1
        spare -= 1
    return widths
