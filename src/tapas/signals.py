"""Handlers of Ctrl-C and SIGTERM: to exit at once, to raise an exception, or to wait for a block.

Imports nothing that takes time: the first handlers are to be there before torch is imported.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

STOPPED_BY = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
IMPORT_SYSTEM = "<frozen importlib._bootstrap>"  # the file of its frames

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextmanager
def handle_signals(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Call `handlers` for their signals inside the block; in a thread, which gets none, nothing."""
    if threading.current_thread() is not threading.main_thread():
        handlers = {}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_on_signals() -> None:
    """Exit at once on Ctrl-C and SIGTERM, until the command has handlers of its own.

    While libraries are imported, an exception of a handler leaves half of a module behind, or is
    swallowed. Ranks die without a word: torchrun tells of them.
    """
    is_rank = "TORCHELASTIC_ERROR_FILE" in os.environ
    for number in STOPPED_BY:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, signal.SIG_DFL if is_rank else exit_at_once)


def exit_at_once(number: int, frame: object = None) -> None:
    """Print which signal it was and end this process, without any cleaning up."""
    try:
        os.write(2, f"tapas: stopped by {STOPPED_BY[signal.Signals(number)]}.\n".encode())
    finally:
        os._exit(128 + number)


@contextmanager
def raise_on_signals(*numbers: int) -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C and SystemExit on SIGTERM, unless they were ignored.

    So unfinished files are removed and processes ended.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):
            exit_at_once(number)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    with handle_signals(dict.fromkeys(heard, end)):
        yield


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported, which may swallow an exception of a signal handler."""
    while frame is not None and frame.f_code.co_filename != IMPORT_SYSTEM:
        frame = frame.f_back
    return frame is not None


@contextmanager
def defer_signals() -> Iterator[None]:
    """Run the handlers of Ctrl-C and SIGTERM at the end of the block, not inside it.

    For short work that must not be interrupted: appending a line to a file, or a call into polars,
    whose Rust code panics if a signal handler raises in a Python callback.
    """
    arrived: list[int] = []
    held = [number for number in STOPPED_BY if callable(signal.getsignal(number))]
    try:
        with handle_signals(dict.fromkeys(held, lambda number, _: arrived.append(number))):
            yield
    finally:
        for late in arrived:
            signal.raise_signal(late)
