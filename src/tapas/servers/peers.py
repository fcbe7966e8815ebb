"""Objects that live in other processes, asked by number; and the same thing in this one.

Questions and answers are numpy arrays, numbers, text, and tuples and dicts of these. A process
that dies is started again by whoever runs it, and what it had been asked is asked again: every
method must bear being called twice.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from tapas.errors import UsageError


class Call(Protocol):
    """A question under way."""

    number: int  # of the peer that was asked

    def done(self) -> bool:
        """Whether `answer` would come back at once."""
        ...

    def answer(self) -> Any:
        """Wait for it. Raises what the method has raised, or PeerError if there is none to hear."""
        ...


class Peers(Protocol):
    """`size` peers of one `kind`, such as "server"; errors call them "server 2"."""

    kind: str
    size: int

    def call(self, number: int, method: str, *args: Any) -> Call:
        """Ask peer `number` for `method(*args)`; returns at once."""
        ...

    def share(self, value: Any) -> Any:
        """What to pass as an argument of several calls, so that one copy of `value` serves all."""
        ...

    def any_done(self, calls: Sequence[Call], seconds: float) -> list[Call]:
        """Those of `calls` that are done, as soon as one is; none after so many seconds."""
        ...

    def ready(self) -> None:
        """Return once each can answer."""
        ...

    def restarts(self) -> list[int]:
        """How often each was started again, as far as its answers have shown."""
        ...

    def close(self) -> None:
        """End the processes, if they were started from here. Safe to call twice."""
        ...


class InProcess:
    """Peers that are objects of this process; a call is made when it is asked for."""

    def __init__(self, kind: str, objects: Sequence[Any]):
        self.kind, self.objects, self.size = kind, list(objects), len(objects)

    def call(self, number: int, method: str, *args: Any) -> "LocalCall":
        if not 0 <= number < self.size:
            raise UsageError(f"there is no {self.kind} {number}: there are {self.size}, from 0.")
        return LocalCall(number, self.objects[number], method, args)

    def share(self, value: Any) -> Any:
        return value

    def any_done(self, calls: Sequence[Call], seconds: float) -> list[Call]:
        return list(calls[:1])

    def ready(self) -> None:
        pass

    def restarts(self) -> list[int]:
        return [0] * self.size

    def close(self) -> None:
        pass


class LocalCall:
    """A call within this process; it succeeds or fails at once, and says so when asked."""

    def __init__(self, number: int, target: Any, method: str, args: tuple[Any, ...]):
        self.number = number
        self._value: Any = None
        self._error: Exception | None = None
        try:
            self._value = getattr(target, method)(*args)
        except Exception as error:
            self._error = error

    def done(self) -> bool:
        return True

    def answer(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


def call_all(peers: Peers, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
    """`method(*args)` of every peer, all under way together."""
    calls = [peers.call(number, method, *args) for number in range(peers.size)]
    return [call.answer() for call in calls]
