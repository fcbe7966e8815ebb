"""A training run stops on Ctrl-C or SIGTERM: after its step, with a checkpoint."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from tapas.cli.terminal import status
from tapas.signals import Handler, handle_signals
from tapas.tables.ranks import Ranks

STOPPING = "Stopping after this step; saving a checkpoint."
PATIENCE_SECONDS = 15  # for the step of a rank to end; torchrun kills after 30


@dataclass(slots=True)
class StopRequest:
    """Whether a signal asked the run to stop, and whether there is anything to save yet."""

    signal: int | None = None
    training: bool = False
    noticed: bool = False  # by the training loop
    parent: int | None = None  # process id of torchrun: a rank stops when torchrun is gone
    announce: bool = False  # print that the run stops once the loop has noticed

    def should_stop(self) -> bool:
        orphaned = self.parent is not None and os.getppid() != self.parent
        if self.announce and self.signal is not None and not self.noticed:
            status(STOPPING)
        self.noticed = self.signal is not None or orphaned
        return self.noticed


@contextmanager
def stop_on_signal(ranks: Ranks) -> Iterator[StopRequest]:
    """The first signal lets the training loop finish its step; a second one stops at once.

    Ranks ignore later signals, because torchrun repeats them. A rank whose step hangs exits
    before torchrun has to kill it. Ranks announce a stop only when the loop has noticed the
    signal: if a rank has died, torchrun stops the others, and only the death is worth a line.
    """
    alone = not ranks.is_distributed
    request = StopRequest(
        parent=None if alone else os.getppid(), announce=ranks.is_main and not alone
    )

    def note(number: int, frame: object) -> None:
        if request.signal is not None and not alone:
            return
        if request.signal is not None or not request.training:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)
        request.signal = number
        if alone:
            status(STOPPING)

    handlers: dict[int, Handler] = {signal.SIGINT: note, signal.SIGTERM: note}
    with handle_signals(handlers), nullcontext() if alone else _patience(request, ranks.rank):
        yield request


@contextmanager
def _patience(request: StopRequest, rank: int) -> Iterator[None]:
    """Exit when the training loop has not noticed a signal within `PATIENCE_SECONDS`.

    By a thread: as long as the main thread waits for other ranks in a collective, no handler runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()  # the numbers of signals, as they arrive
    os.set_blocking(writing, False)
    ended = threading.Event()

    def watch() -> None:
        while arrived := os.read(reading, 1):
            if arrived[0] in (signal.SIGINT, signal.SIGTERM):
                if ended.wait(PATIENCE_SECONDS) or request.noticed:
                    return
                status(
                    f"tapas: stopped: the step of rank {rank} did not end within "
                    f"{PATIENCE_SECONDS} s."
                )
                os._exit(128 + arrived[0])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        os.close(writing)
        thread.join()
        os.close(reading)
