"""`ServerChannel`: the requests and pushes of one worker to all servers.

Requests to several servers run concurrently. A push carries (worker, sequence), by which servers
recognise a repeated one, and the oldest version of each server that it was computed from.
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
    """Gradients of the rows of one table on one server."""

    ids: Ids  # (N,)
    weight: Floats  # (N, D)
    bias: Floats  # (N,), or (0,) for a table without biases
    update: RowUpdate | None = None  # with current hyperparameters; None: those of the server


@dataclass(slots=True)
class Traffic:
    """Bytes of the arrays that a worker sends and receives, without the transport's overhead."""

    sent_bytes: int = 0
    received_bytes: int = 0
    round_trips: int = 0


@dataclass(slots=True)
class ServerChannel:
    """Sends the requests and pushes of `worker`; for use by one thread."""

    servers: Peers
    worker: int | str = field(default_factory=incarnation)  # unique for each channel
    sequence: int = 0  # of the next push
    max_unacknowledged: int = 0  # pushes in flight before another waits; 0: wait for each
    traffic: Traffic = field(default_factory=Traffic)
    push_results: list[PushResult] = field(
        default_factory=list
    )  # of the last push whose results are known
    _unacknowledged: deque[tuple[int, list[Call]]] = field(default_factory=deque)  # by sequence
    _first_read: dict[int, Version] = field(default_factory=dict)
    _pending: list[dict[str, Gradients]] | None = None  # inside `single_push`, for each server

    def request(self, method: str, requests: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """Call `method` on each server of `requests`; the last part of an answer is a `Version`."""
        calls = [self.servers.call(j, method, *request) for j, request in requests.items()]
        answers = {call.number: call.answer() for call in calls}
        for number, answer in answers.items():
            self._note(number, answer[-1])
        self._count(requests, answers)
        return answers

    def share(self, array: Floats | Ids) -> Any:
        """`array` as an argument of a request to all servers."""
        shared = self.servers.share(array)
        if shared is not array:  # else it is counted with the request
            self.traffic.sent_bytes += self.servers.size * array.nbytes
        return shared

    def push(self, table: str, parts: Sequence[Gradients]) -> None:
        """Send part j to server j, now or at the end of `single_push`."""
        if self._pending is None:
            with self.single_push(self.sequence):
                self.push(table, parts)
            return
        for mine, part in zip(self._pending, parts, strict=True):
            if table in mine:
                raise UsageError(
                    f"table '{table}' occurs twice in one push. Sum its gradients with "
                    "`table.accumulate()` first."
                )
            mine[table] = part

    @contextmanager
    def single_push(
        self, sequence: int, *, acknowledged_below: int | None = None
    ) -> Iterator[None]:
        """Send everything pushed inside as one push, number `sequence`; nothing on an exception.

        The worker has the results of all pushes with a sequence below `acknowledged_below`; by
        default, of those that this channel knows to be applied.
        """
        if self._pending is not None:
            raise UsageError("single_push blocks cannot be nested; leave the outer one first.")
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
            self._first_read.clear()

    def _send(
        self, pending: list[dict[str, Gradients]], sequence: int, acknowledged_below: int | None
    ) -> None:
        self._await_pushes(self.max_unacknowledged)
        if acknowledged_below is None:
            acknowledged_below = min([sequence, *(earlier for earlier, _ in self._unacknowledged)])
        requests = {}
        for number, part in enumerate(pending):
            first_read = self._first_read[number].num_pushes if number in self._first_read else None
            requests[number] = (self.worker, sequence, acknowledged_below, first_read, part)
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
                except Exception as error:  # still wait for the other servers
                    errors.append(error)
            if errors:
                raise errors[0]
            self.push_results = push_results

    def _note(self, number: int, version: Version) -> None:
        """Keep the first version read; a restarted server counts from 0 again."""
        first = self._first_read.get(number)
        if first is None or first.incarnation != version.incarnation:
            self._first_read[number] = version

    def _count(self, requests: Mapping[int, Any], answers: Mapping[int, Any]) -> None:
        self.traffic.round_trips += 1
        self.traffic.sent_bytes += sum(map(num_bytes, requests.values()))
        self.traffic.received_bytes += sum(map(num_bytes, answers.values()))


def num_bytes(message: Any) -> int:
    """Total size of the arrays in `message`."""
    if isinstance(message, np.ndarray):
        return message.nbytes
    if isinstance(message, dict):
        return sum(map(num_bytes, message.values()))
    if isinstance(message, tuple | list):
        return sum(map(num_bytes, message))
    return 0
