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
from tapas.servers.messages import Floats, Ids, Receipt, Stamp, incarnation
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
class Post:
    """The post of `worker`, which has one thread.

    A push is heard of before the next one but `max_unheard` is sent: 0 waits for each.
    """

    servers: Peers
    worker: int | str = field(default_factory=incarnation)  # no two posts may have the same
    sequence: int = 0  # of the next push
    max_unheard: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    receipts: list[Receipt] = field(default_factory=list)  # of the last push that was heard of
    _unheard: deque[tuple[int, list[Call]]] = field(default_factory=deque)  # by sequence
    _seen: dict[int, Stamp] = field(default_factory=dict)
    _parcel: list[dict[str, Gradients]] | None = None  # of each server: pushes that go as one

    def ask(self, verb: str, requests: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """The answers of the servers that are asked, whose last part is a `Stamp`."""
        calls = [self.servers.call(j, verb, *request) for j, request in requests.items()]
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
        """Send part j to server j, at once or with the rest of `one_push`."""
        if self._parcel is None:
            with self.one_push(self.sequence):
                self.push(table, parts)
            return
        for mine, part in zip(self._parcel, parts, strict=True):
            if table in mine:
                raise UsageError(f"'{table}' is pushed twice in one push. Accumulate it first.")
            mine[table] = part

    @contextmanager
    def one_push(self, sequence: int, *, settled: int | None = None) -> Iterator[None]:
        """All that is pushed inside goes as push number `sequence`; nothing after an exception.

        All sequences below `settled` have been heard of; left out, those that this post knows.
        """
        if self._parcel is not None:
            raise UsageError("a push is being made already; leave that block first.")
        if settled is not None and settled > sequence:
            raise UsageError(
                f"push {sequence} cannot be settled already, but settled is {settled}. It must be "
                f"at most {sequence}."
            )
        self._parcel = [{} for _ in range(self.servers.size)]
        try:
            yield
            parcel, self._parcel = self._parcel, None
            self._send(parcel, sequence, settled)
        finally:
            self._parcel = None
            self._seen.clear()

    def _send(self, parcel: list[dict[str, Gradients]], sequence: int, settled: int | None) -> None:
        self._hear(self.max_unheard)
        if settled is None:
            settled = min([sequence, *(earlier for earlier, _ in self._unheard)])
        requests = {}
        for number, part in enumerate(parcel):
            seen = self._seen[number].version if number in self._seen else None
            requests[number] = (self.worker, sequence, settled, seen, part)
        calls = [self.servers.call(j, "push", *request) for j, request in requests.items()]
        self._unheard.append((sequence, calls))
        self.sequence = max(self.sequence, sequence + 1)
        self._count(requests, {})
        self._hear(self.max_unheard)

    def flush(self) -> None:
        """Return once all pushes have been applied."""
        self._hear(0)

    def _hear(self, most: int) -> None:
        while len(self._unheard) > most:
            receipts, errors = [], []
            for call in self._unheard.popleft()[1]:
                try:
                    receipts.append(call.answer())
                except Exception as error:  # the other servers' parts are on their way all the same
                    errors.append(error)
            if errors:
                raise errors[0]
            self.receipts = receipts

    def _note(self, number: int, stamp: Stamp) -> None:
        """The first look at a server counts; after a restart its count has begun anew."""
        first = self._seen.get(number)
        if first is None or first.incarnation != stamp.incarnation:
            self._seen[number] = stamp

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
