"""Ctrl-C and SIGTERM at a moment that can take them."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def defer_signals() -> Iterator[None]:
    """Handlers of Ctrl-C and SIGTERM run at the end of the block, not within it.

    For short work that must not be cut in two: a line that is appended to a file, or a call into
    polars, whose Rust code panics where a handler raises in the Python that it calls in turn.
    """
    if threading.current_thread() is not threading.main_thread():  # others never run handlers
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
