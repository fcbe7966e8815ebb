"""Exit codes, and one line on stderr for every error that is not a bug."""

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer

from tapas.cli.rank_errors import error_file, report_error
from tapas.cli.terminal import status
from tapas.errors import DataError, TapasError, UsageError, is_out_of_memory
from tapas.escapes import printable, shortened
from tapas.extras import how_to_install
from tapas.signals import raise_on_signals

FAILED = 1
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
TERMINATED = 128 + signal.SIGTERM
NO_MEMORY = "out of memory. Use fewer classes, or see `tapas plan`."


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn errors of users, data and machines into one line; a bug keeps its traceback."""
    # ranks of torchrun may be waiting for each other: SIGTERM ends them at once
    numbers = [signal.SIGINT] if error_file() else [signal.SIGINT, signal.SIGTERM]
    try:
        with raise_on_signals(*numbers):
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
    except BaseException as error:
        if is_out_of_memory(error):
            _end(NO_MEMORY, FAILED)
        if not isinstance(error, OSError):
            raise
        # Python flushes stdout again at exit and would report the same error again
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(
            error, BrokenPipeError
        ):  # the reader is gone, as in `tapas inspect log | head -1`
            raise typer.Exit(FAILED) from None
        _end(_describe(error), FAILED)


def _describe(error: OSError) -> str:
    """What could not be read or written; errors of stdout name no file."""
    reason = error.strerror or str(error)
    if error.errno == errno.EMFILE:
        return f"{reason}. Raise the limit, for example with `ulimit -n 1024`."
    if error.filename is not None:
        return f"cannot open {os.fsdecode(error.filename)!r}: {reason}."
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE, errno.EBADF}:
        return f"cannot write the output: {reason}."
    return f"reading or writing failed: {reason}."


def _end(words: str, code: int, *, try_again: bool = True) -> None:
    """Print the error, unless another rank did, and exit."""
    shown = shortened(printable(words))
    report_error(shown, code, lambda: status(f"tapas: {shown}"), try_again=try_again)
    raise typer.Exit(code) from None
