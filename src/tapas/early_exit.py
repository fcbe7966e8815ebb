"""Ctrl-C and SIGTERM before the command has handlers of its own.

Imports nothing that takes time: the handlers are to be there before torch is imported.
"""

import os
import signal

STOPPED_BY = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


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
