"""Ctrl-C and SIGTERM: a training run ends after its step, with a checkpoint."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tapas.cli.terminal import status
from tapas.tables.ranks import ONE_PROCESS, Ranks

PATIENCE_SECONDS = 15  # for a rank's step to end; torchrun kills after 30


@dataclass(slots=True)
class StopRequest:
    """Whether a signal asked the run to stop, and whether there is anything to save yet."""

    signal: int | None = None
    training: bool = False
    noticed: bool = False  # the loop knows

    parent: int | None = None  # of a rank: without torchrun there is nobody to stop it

    def should_stop(self) -> bool:
        orphaned = self.parent is not None and os.getppid() != self.parent
        self.noticed = self.signal is not None or orphaned
        return self.noticed


@contextmanager
def stop_on_signal(ranks: Ranks) -> Iterator[StopRequest]:
    """A signal is noted, for the loop to end well; a second one ends at once.

    Ranks note any number, as torchrun repeats a signal; one whose step does not end, because
    it hangs, ends before torchrun has to kill it.
    """
    request = StopRequest(parent=None if ranks is ONE_PROCESS else os.getppid())

    def note(number: int, frame: object) -> None:
        if request.signal is not None and ranks is not ONE_PROCESS:
            return
        if request.signal is not None or not request.training:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            status("tapas: stopped by SIGTERM.")
            raise SystemExit(128 + number)
        request.signal = number
        if ranks.is_main:
            status("Stopping after this step, with a checkpoint.")
        if ranks is not ONE_PROCESS:
            signal.alarm(PATIENCE_SECONDS)

    def lose_patience(number: int, frame: object) -> None:
        if not request.noticed:
            status(
                f"tapas: rank {ranks.rank} has not ended its step in {PATIENCE_SECONDS} s: stopped."
            )
            raise SystemExit(128 + (request.signal or number))

    handlers = {signal.SIGINT: note, signal.SIGTERM: note}
    if ranks is not ONE_PROCESS:
        handlers[signal.SIGALRM] = lose_patience
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield request
    finally:
        if ranks is not ONE_PROCESS:
            signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
