"""Deferring Ctrl-C and SIGTERM until a short critical section is done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def defer_signals() -> Iterator[None]:
    """Run the handlers of Ctrl-C and SIGTERM at the end of the block, not inside it.

    For short work that must not be interrupted: appending a line to a file, or a call into polars,
    whose Rust code panics if a signal handler raises in a Python callback.
    """
    if threading.current_thread() is not threading.main_thread():  # only it runs handlers
        yield
        return
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    known = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = {number: handler for number, handler in known.items() if callable(handler)}
    for number in held:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for late in arrived:
            signal.raise_signal(late)
