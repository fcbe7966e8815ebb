"""A server: one shard of every table, and the verbs by which workers reach its rows.

All ids are global. A push carries (worker, sequence) and is applied once, however often it
comes; each one applied is a version, by which reads and pushes say what they have seen.
"""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.optim.row_store import RowGradients
from tapas.optim.row_updates import RowUpdate
from tapas.servers.channel import Gradients
from tapas.servers.messages import (
    Floats,
    Ids,
    Ledger,
    Receipt,
    Scored,
    Scoring,
    Stamp,
    array_of,
    incarnation,
    tensor_of,
)
from tapas.tables.exhaustive import log_sum_rows, topk_by_id
from tapas.tables.second_pass import SecondPass, select_here
from tapas.tables.shard import Shard


class Turns:
    """A lock that counts who takes it for what, for how long, and who waited before."""

    def __init__(self) -> None:
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._waiting = 0
        self._queue: Counter[int] = Counter()  # how many were before a request, how often
        self._busy_seconds: dict[str, float] = {}
        self._requests: Counter[str] = Counter()

    @contextmanager
    def take(self, verb: str) -> Iterator[None]:
        with self._counting:
            self._queue[self._waiting] += 1
            self._waiting += 1
        try:
            with self._lock:
                begun = time.perf_counter()
                try:
                    yield
                finally:
                    taken = time.perf_counter() - begun
                    with self._counting:
                        self._requests[verb] += 1
                        self._busy_seconds[verb] = self._busy_seconds.get(verb, 0.0) + taken
        finally:
            with self._counting:
                self._waiting -= 1

    def counts(self) -> dict[str, Any]:
        """Since the beginning; answers while others wait."""
        with self._counting:
            return {
                "requests": dict(self._requests),
                "busy_seconds": dict(self._busy_seconds),
                "queue": dict(self._queue),
            }


class RowServer:
    """Server `number` with its `shards` of tables, by name.

    Pushes of a sequence below `settled`, of any worker, are in the rows already. Threads may
    call any verb; they take turns.
    """

    def __init__(self, number: int, shards: Mapping[str, Shard], *, settled: int = 0):
        self.number, self.shards = number, dict(shards)
        self.ledger, self.restored = Ledger(settled), settled
        self.incarnation = incarnation()
        self.version = 0
        self._moved = {
            name: np.zeros(shard.num_classes, np.int32) for name, shard in shards.items()
        }
        self._turns = Turns()
        self._staleness: Counter[int] = Counter()
        self._rows = self._collided = 0

    def score(
        self,
        table: str,
        query: Floats,
        target: Ids,
        how: Scoring | None,
        ids: Ids,
        log_q: Floats,
        noise: Floats,
        quota: int,
        wanted: Ids,
    ) -> Scored:
        """The `quota` of this server's part of a pool that the second pass keeps, with their rows.

        `ids` (P,), `log_q` (P,) and `noise` (P,) are that part; it is scored by `query` (A, D),
        whose targets are `target` (A, L). Where `how` is left out all of it stays, and nothing is
        scored. `wanted` (T,) are targets that live here.
        """
        with self._turn("score"):
            shard = self._shard(table)
            kept = Candidates(tensor_of(ids), tensor_of(log_q))
            if how is not None:
                second_pass = SecondPass(
                    quota,
                    how.rule,
                    how.temperature,
                    tensor_of(query),
                    tensor_of(target),
                    how.complete,
                    tensor_of(noise),
                )
                rows = self._slots(table, kept.ids)
                kept = select_here(shard, kept, rows, second_pass)
            rows = self._slots(table, torch.cat([kept.ids, tensor_of(wanted)]))
            weight, bias = shard._read(rows)
            return Scored(
                kept.ids.numpy(), kept.log_q.numpy(), weight.numpy(), bias.numpy(), self._stamp()
            )

    def rows(self, table: str, ids: Ids) -> tuple[Floats, Floats, Stamp]:
        """Weights (N, D) and biases (N,) of `ids` (N,), which live here."""
        with self._turn("rows"):
            weight, bias = self._shard(table)._read(self._slots(table, tensor_of(ids)))
            return weight.numpy(), bias.numpy(), self._stamp()

    def push(
        self,
        worker: int | str,
        sequence: int,
        settled: int,
        seen: int | None,
        gradients: Mapping[str, Gradients],
    ) -> Receipt:
        """Move rows by the `gradients` of each table, unless done before.

        Every push of the worker with a sequence below `settled` has been heard of and will not
        come again; `seen` is the oldest version that this one was computed from, if it was from
        any. A push that is refused moves nothing.
        """
        with self._turn("push"):
            self.ledger.settle(worker, settled)
            if (earlier := self.ledger.find(worker, sequence, self._stamp())) is not None:
                return earlier
            slots = {
                table: self._slots(table, tensor_of(part.ids)) for table, part in gradients.items()
            }
            updates = {table: self._update(table, part) for table, part in gradients.items()}
            for table, part in gradients.items():
                self._check_shapes(table, part)
            rows = collided = 0
            seen = self.version if seen is None else seen
            staleness = max(0, self.version - seen)
            self.version += 1
            for table, part in gradients.items():
                found = RowGradients(slots[table], tensor_of(part.weight), tensor_of(part.bias))
                self._shard(table).move_rows(updates[table], found, None)
                moved, at = self._moved[table], slots[table].numpy()
                rows += len(at)
                collided += int(np.count_nonzero(moved[at] > seen))
                moved[at] = self.version
            self._staleness[staleness] += 1
            self._rows += rows
            self._collided += collided
            receipt = Receipt(True, staleness, rows, collided, self._stamp())
            return self.ledger.enter(worker, sequence, receipt)

    def topk(
        self, table: str, query: Floats, k: int, exclude: Ids | None
    ) -> tuple[Floats, Ids, Stamp]:
        """The k best classes of this shard (fewer if it has fewer): scores and ids, (B, k)."""
        with self._turn("topk"):
            shard = self._shard(table)
            banned = None if exclude is None else tensor_of(exclude)
            if banned is not None:
                slots = self._places(shard, banned.clamp(min=0))
                foreign = (banned < 0) | (slots < 0) | (slots >= shard.num_classes)
                banned = slots.masked_fill(foreign, -1)
            start = shard.whole.start(self.number)
            value, ids = topk_by_id(
                shard.weight,
                shard.bias_or_none(),
                tensor_of(query),
                min(k, shard.num_classes),
                banned,
                lambda rows: shard.whole.ids_at(rows + start),
            )
            return array_of(value), array_of(ids), self._stamp()

    def log_partition(self, table: str, query: Floats) -> tuple[Floats, Stamp]:
        """Log of the sum over this shard's classes of exp(logit), (B,)."""
        with self._turn("log_partition"):
            shard = self._shard(table)
            value = log_sum_rows(shard.weight, shard.bias_or_none(), tensor_of(query))
            return value.numpy(), self._stamp()

    def _check_shapes(self, table: str, part: Gradients) -> None:
        shard, size = self._shard(table), len(part.ids)
        found = (part.weight.shape, part.weight.dtype, part.bias.shape, part.bias.dtype)
        floats = np.dtype(np.float32)
        if found != ((size, shard.dim), floats, (size if shard.has_bias else 0,), floats):
            raise UsageError(
                f"a push to '{table}' has gradients {found} for {size} ids; expected float32, "
                f"({size}, {shard.dim}) and one for each bias. Nothing was changed."
            )

    def _update(self, table: str, part: Gradients) -> RowUpdate:
        """By what the rows are moved: the numbers that came along, or those of this server."""
        own: Any = self._shard(table).row_optimizer  # shards of servers are fused
        if part.update is not None and type(part.update) is not type(own):
            raise UsageError(
                f"'{table}' on server {self.number} is moved by {own.name}, got a push for "
                f"{part.update.name}. Nothing was changed."
            )
        return part.update or own

    def state(self, table: str) -> tuple[dict[str, NDArray[Any]], int]:
        """All tensors of a shard in the order of its rows, float32, and its number of updates."""
        with self._turn("state"):
            shard = self._shard(table)
            return {
                name: array_of(value.to(torch.float32, copy=True))  # rows move on before it leaves
                for name, value in shard.row_tensors().items()
            }, shard.num_updates

    def load(self, table: str, tensors: Mapping[str, NDArray[Any]], num_updates: int) -> None:
        """Put back what `state` gave."""
        with self._turn("load"):
            shard = self._shard(table)
            for name, value in shard.row_tensors().items():
                value.copy_(tensor_of(tensors[name]))
            shard.num_updates = num_updates

    def num_updates(self, table: str) -> int:
        """How often rows of `table` have been moved."""
        return self._shard(table).num_updates

    def status(self) -> dict[str, Any]:
        """Counts since this process began; answers while others wait."""
        return self._turns.counts() | {
            "server": self.number,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "incarnation": self.incarnation,
            "restored": self.restored,
            "version": self.version,
            "staleness": dict(self._staleness),
            "rows": self._rows,
            "collided": self._collided,
            "repeated": self.ledger.num_repeated,
        }

    @contextmanager
    def _turn(self, verb: str) -> Iterator[None]:
        with self._turns.take(verb), torch.no_grad():
            yield

    def _shard(self, table: str) -> Shard:
        if table not in self.shards:
            known = ", ".join(sorted(self.shards))
            raise UsageError(f"server {self.number} has no table '{table}'. It has: {known}.")
        return self.shards[table]

    def _slots(self, table: str, ids: Tensor) -> Tensor:
        """Where the rows of `ids` (N,) are in the shard; native code would take any place."""
        shard = self._shard(table)
        slots = self._places(shard, ids)
        foreign = (slots < 0) | (slots >= shard.num_classes)
        if bool(foreign.any()):
            raise UsageError(
                f"class {int(ids[foreign][0])} of '{table}' is not on server {self.number}: who "
                "asks places classes otherwise. Build tables and servers from one TableSpec."
            )
        return slots

    def _places(self, shard: Shard, ids: Tensor) -> Tensor:
        return shard.whole.permute(ids) - shard.whole.start(self.number)

    def _stamp(self) -> Stamp:
        return Stamp(self.incarnation, self.version)
