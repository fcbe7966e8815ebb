"""How a command ends when it cannot do what was asked: one line on stderr and a code."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from tapas.errors import TapasError
from tapas.extras import how_to_install

FAILED = 1
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@contextmanager
def report_errors() -> Iterator[None]:
    """Turns what can go wrong outside the code into one line; a bug keeps its traceback."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        _end("stopped by Ctrl-C.", INTERRUPTED)
    except TapasError as error:
        _end(str(error), FAILED)
    except ModuleNotFoundError as error:
        words = how_to_install(error.name)
        if words is None:
            raise
        _end(words, FAILED)
    except OSError as error:
        # Python flushes stdout once more at exit, and would complain once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # as in `tapas inspect log | head -1`: nobody reads
            raise typer.Exit(FAILED) from None
        _end(f"cannot write the output: {error.strerror or error}.", FAILED)
    except (MemoryError, RuntimeError) as error:
        # torch has no exception of its own for the CPU's memory
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        _end("out of memory. Ask for fewer classes.", FAILED)


def _end(words: str, code: int) -> None:
    typer.echo(f"tapas: {words}", err=True)
    raise typer.Exit(code) from None
