"""Exit codes, and one line on stderr for every error that is not a bug."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from tapas.cli.rank_errors import error_file, report_error
from tapas.cli.terminal import status
from tapas.errors import DataError, TapasError, UsageError
from tapas.extras import how_to_install

FAILED = 1
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
TERMINATED = 128 + signal.SIGTERM


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn errors of users, data and machines into one line; a bug keeps its traceback."""
    try:
        with exit_on_sigterm():
            yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        _end("stopped by Ctrl-C.", INTERRUPTED)
    except SystemExit as error:
        if error.code == TERMINATED and error_file() is None:  # torchrun says so for its ranks
            status("tapas: stopped by SIGTERM.")
        raise
    except TapasError as error:
        is_mistake = isinstance(error, UsageError | DataError)
        _end(str(error), FAILED, try_again=not is_mistake)
    except ModuleNotFoundError as error:
        words = how_to_install(error.name)
        if words is None:
            raise
        _end(words, FAILED, try_again=False)
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


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, so that unfinished files are removed and processes ended.

    Not in ranks of torchrun, which may be waiting for each other and are to die at once.
    """

    def end(number: int, frame: object) -> None:
        raise SystemExit(TERMINATED)

    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or error_file() is not None:
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(words: str, code: int, *, try_again: bool = True) -> None:
    """Print the error, unless another rank did, and exit."""
    report_error(words, code, lambda: status(f"tapas: {words}"), try_again=try_again)
    raise typer.Exit(code) from None
