"""What one worker sends to the servers and hears from them.

Questions to all servers are under way together. Pushes carry (worker, sequence), and the oldest
version of each server that they were computed from.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tapas.errors import UsageError
from tapas.optim.row_updates import RowUpdate
from tapas.servers.messages import Floats, Ids, PushResult, Version, incarnation
from tapas.servers.peers import Call, Peers


class Gradients(NamedTuple):
    """Of one table, for one server."""

    ids: Ids  # (N,)
    weight: Floats  # (N, D)
    bias: Floats  # (N,), or (0,) for a table without biases
    update: RowUpdate | None = None  # its present numbers; None: those that the server has


@dataclass(slots=True)
class Traffic:
    """Bytes of arrays, from the worker's side; what carries them adds its own."""

    sent_bytes: int = 0
    received_bytes: int = 0
    round_trips: int = 0


@dataclass(slots=True)
class ServerChannel:
    """The channel of `worker`, which has one thread.

    A push is heard of before the next one but `max_unacknowledged` is sent: 0 waits for each.
    """

    servers: Peers
    worker: int | str = field(default_factory=incarnation)  # no two channels may have the same
    sequence: int = 0  # of the next push
    max_unacknowledged: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    push_results: list[PushResult] = field(
        default_factory=list
    )  # of the last push whose results are known
    _unacknowledged: deque[tuple[int, list[Call]]] = field(default_factory=deque)  # by sequence
    _seen: dict[int, Version] = field(default_factory=dict)
    _pending: list[dict[str, Gradients]] | None = None  # of each server: pushes that go as one

    def request(self, method: str, requests: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """The answers of the servers that are asked, whose last part is a `Version`."""
        calls = [self.servers.call(j, method, *request) for j, request in requests.items()]
        answers = {call.number: call.answer() for call in calls}
        for number, answer in answers.items():
            self._note(number, answer[-1])
        self._count(requests, answers)
        return answers

    def share(self, array: Floats | Ids) -> Any:
        """`array` as an argument of one question to all servers."""
        shared = self.servers.share(array)
        if shared is not array:  # else it is counted with the question
            self.traffic.sent_bytes += self.servers.size * array.nbytes
        return shared

    def push(self, table: str, parts: Sequence[Gradients]) -> None:
        """Send part j to server j, at once or with the rest of `single_push`."""
        if self._pending is None:
            with self.single_push(self.sequence):
                self.push(table, parts)
            return
        for mine, part in zip(self._pending, parts, strict=True):
            if table in mine:
                raise UsageError(f"'{table}' is pushed twice in one push. Accumulate it first.")
            mine[table] = part

    @contextmanager
    def single_push(
        self, sequence: int, *, acknowledged_below: int | None = None
    ) -> Iterator[None]:
        """All that is pushed inside goes as push number `sequence`; nothing after an exception.

        The worker has the results of all pushes with a sequence below `acknowledged_below`; by
        default, of those that this channel knows to be applied.
        """
        if self._pending is not None:
            raise UsageError("a push is being made already; leave that block first.")
        if acknowledged_below is not None and acknowledged_below > sequence:
            raise UsageError(
                f"acknowledged_below must be at most {sequence}, the sequence of this push, got "
                f"{acknowledged_below}."
            )
        self._pending = [{} for _ in range(self.servers.size)]
        try:
            yield
            pending, self._pending = self._pending, None
            self._send(pending, sequence, acknowledged_below)
        finally:
            self._pending = None
            self._seen.clear()

    def _send(
        self, pending: list[dict[str, Gradients]], sequence: int, acknowledged_below: int | None
    ) -> None:
        self._await_pushes(self.max_unacknowledged)
        if acknowledged_below is None:
            acknowledged_below = min([sequence, *(earlier for earlier, _ in self._unacknowledged)])
        requests = {}
        for number, part in enumerate(pending):
            seen = self._seen[number].num_pushes if number in self._seen else None
            requests[number] = (self.worker, sequence, acknowledged_below, seen, part)
        calls = [self.servers.call(j, "push", *request) for j, request in requests.items()]
        self._unacknowledged.append((sequence, calls))
        self.sequence = max(self.sequence, sequence + 1)
        self._count(requests, {})
        self._await_pushes(self.max_unacknowledged)

    def flush(self) -> None:
        """Return once all pushes have been applied."""
        self._await_pushes(0)

    def _await_pushes(self, most: int) -> None:
        while len(self._unacknowledged) > most:
            push_results, errors = [], []
            for call in self._unacknowledged.popleft()[1]:
                try:
                    push_results.append(call.answer())
                except Exception as error:  # the other servers' parts are on their way all the same
                    errors.append(error)
            if errors:
                raise errors[0]
            self.push_results = push_results

    def _note(self, number: int, version: Version) -> None:
        """The first look at a server counts; after a restart its count has begun anew."""
        first = self._seen.get(number)
        if first is None or first.incarnation != version.incarnation:
            self._seen[number] = version

    def _count(self, requests: Mapping[int, Any], answers: Mapping[int, Any]) -> None:
        self.traffic.round_trips += 1
        self.traffic.sent_bytes += sum(map(num_bytes, requests.values()))
        self.traffic.received_bytes += sum(map(num_bytes, answers.values()))


def num_bytes(message: Any) -> int:
    """Of the arrays in `message`."""
    if isinstance(message, np.ndarray):
        return message.nbytes
    if isinstance(message, dict):
        return sum(map(num_bytes, message.values()))
    if isinstance(message, tuple | list):
        return sum(map(num_bytes, message))
    return 0
