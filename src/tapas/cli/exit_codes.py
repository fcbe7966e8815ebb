"""Exit codes, and one line on stderr for every error that is not a bug."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from tapas.cli.terminal import status
from tapas.errors import TapasError
from tapas.extras import how_to_install

FAILED = 1
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn errors of users, data and machines into one line; a bug keeps its traceback."""
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
        # Python flushes stdout again at exit and would report the same error again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(
            error, BrokenPipeError
        ):  # the reader is gone, as in `tapas inspect log | head -1`
            raise typer.Exit(FAILED) from None
        _end(f"cannot write the output: {error.strerror or error}.", FAILED)
    except (MemoryError, RuntimeError) as error:
        # torch raises a plain RuntimeError when the CPU is out of memory
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        _end("out of memory. Use fewer classes, or see `tapas plan`.", FAILED)


def _end(words: str, code: int) -> None:
    status(f"tapas: {words}")
    raise typer.Exit(code) from None
