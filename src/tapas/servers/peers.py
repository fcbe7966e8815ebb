"""`Peers`: objects in other processes, called by number; `InProcess`: the same in this process.

Arguments and answers are numpy arrays, numbers, strings, and tuples and dicts of these. If a
process dies, it is restarted and its unanswered calls are made again, so every method must be
safe to call twice.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from tapas.errors import UsageError


class Call(Protocol):
    """A call to a peer that may not have been answered yet."""

    number: int  # of the peer

    def done(self) -> bool:
        """Whether `answer` would return at once."""
        ...

    def answer(self) -> Any:
        """Wait for the answer. Raises the method's error, or PeerError if none comes."""
        ...


class Peers(Protocol):
    """`size` peers of one `kind`, such as "server"; errors call them "server 2"."""

    kind: str
    size: int

    def call(self, number: int, method: str, *args: Any) -> Call:
        """Start `method(*args)` on peer `number` without waiting for the answer."""
        ...

    def share(self, value: Any) -> Any:
        """`value` in a form that several calls can share as an argument without copies."""
        ...

    def any_done(self, calls: Sequence[Call], seconds: float) -> list[Call]:
        """The finished `calls`, as soon as there is one; empty after `seconds`."""
        ...

    def ready(self) -> None:
        """Wait until every peer can answer."""
        ...

    def restarts(self) -> list[int]:
        """How often each peer was restarted, as seen in its answers."""
        ...

    def close(self) -> None:
        """Stop the processes if this object started them. Safe to call twice."""
        ...


class InProcess:
    """Peers that are objects of this process; `call` runs the method at once."""

    def __init__(self, kind: str, objects: Sequence[Any]):
        self.kind, self.objects, self.size = kind, list(objects), len(objects)

    def call(self, number: int, method: str, *args: Any) -> "LocalCall":
        if not 0 <= number < self.size:
            raise UsageError(f"there is no {self.kind} {number}. Numbers are 0 to {self.size - 1}.")
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
    """A finished call within this process; an error is raised by `answer`."""

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
    """The answers of all peers to `method(*args)`, called concurrently."""
    calls = [peers.call(number, method, *args) for number in range(peers.size)]
    return [call.answer() for call in calls]
