"""Lines and tables for the user, fitted to the width of the terminal.

All output of the commands goes through these functions, which show names as `printable` does.
"""

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, Literal, TextIO

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from tapas.escapes import printable, shortened

MOST_OF_STATUS = 2_000  # characters of a line on stderr, which may have long paths to copy
WIDE = 160  # columns of a table in a file or a pipe
GAP = 2  # between two columns of a table
LONG_WORD = 24  # longer words in a table are broken where the terminal is narrow
NO_BREAK = "\0"  # stands for a space inside a command


def status(words: str) -> None:
    """Tell the user on stderr what the command is doing, in one line unless on a terminal."""
    shown = shortened(printable(words), MOST_OF_STATUS)
    _write(wrapped(shown, sys.stderr) if sys.stderr.isatty() else shown, sys.stderr)


def warn_only(words: str) -> None:
    """As `status` with --quiet: only warnings are printed."""
    if words.startswith("Warning: "):
        status(words)


def say(words: str, *, indent: str = "") -> None:
    """Print a sentence of the answer on stdout; `indent` is for lines after the first."""
    _write(wrapped(printable(words), sys.stdout, indent=indent), sys.stdout)


def print_lines(*lines: str, err: bool = False) -> None:
    """Print lines that are never wrapped, such as commands to copy."""
    for line in lines:
        _write(printable(line), sys.stderr if err else sys.stdout)


def print_row(*cells: object) -> None:
    """Print cells separated by tabs, for programs."""
    _write("\t".join(map(printable, cells)), sys.stdout)


def print_json(value: Any, **options: Any) -> None:
    """Print JSON, in ASCII, which keeps all keys exactly."""
    _write(json.dumps(value, **options), sys.stdout)


def confirm(question: str) -> None:
    """Ask the user on stderr; exit unless the answer is yes."""
    typer.confirm(printable(question), abort=True, err=True)


def _write(words: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"
    words = words.encode(encoding, "backslashreplace").decode(encoding)  # it may be ASCII only
    typer.echo(words, err=stream is sys.stderr)


def console(*, err: bool = False, width: int | None = None) -> Console:
    """A console that takes no name for markup or an emoji."""
    return Console(stderr=err, width=width, highlight=False, markup=False, emoji=False)


def wrapped(words: str, stream: TextIO, *, indent: str = "") -> str:
    """`words` broken between words at the width of the terminal; later lines begin with `indent`.

    Files and pipes get one long line, so that programs can search it. Commands in backticks are
    not broken, so that they can be copied.
    """
    width = terminal_width(stream)
    if width is None:
        return words
    whole = re.sub("`[^`]*`", lambda found: found[0].replace(" ", NO_BREAK), words)
    return textwrap.fill(
        whole,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    ).replace(NO_BREAK, " ")


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
    heading = ["\n".join(map(printable, words.split("\n"))) for words in heading]
    rows = [[printable(cell) for cell in row] for row in rows]
    table = Table(
        box=box.SIMPLE_HEAD,
        title=None if title is None else printable(title),
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
    drawn = console(width=max(room, needed))
    with drawn.capture() as lines:
        drawn.print(table)
    _write(lines.get().removesuffix("\n"), sys.stdout)


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
