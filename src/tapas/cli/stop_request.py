"""A training run stops on Ctrl-C or SIGTERM: after its step, with a checkpoint."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
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
        if not alone:
            signal.alarm(PATIENCE_SECONDS)

    def lose_patience(number: int, frame: object) -> None:
        if not request.noticed:
            status(
                f"tapas: stopped: the step of rank {ranks.rank} did not end within "
                f"{PATIENCE_SECONDS} s."
            )
            raise SystemExit(128 + (request.signal or number))

    handlers: dict[int, Handler] = {signal.SIGINT: note, signal.SIGTERM: note}
    if not alone:
        handlers[signal.SIGALRM] = lose_patience
    with handle_signals(handlers):
        try:
            yield request
        finally:
            if not alone:
                signal.alarm(0)
