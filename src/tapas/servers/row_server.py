"""`RowServer`: keeps one shard of every table, and reads, scores and updates its rows.

All ids are global. A push carries (worker, sequence) and is applied once, even if it arrives
repeatedly. The number of applied pushes is the version of the rows.
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
    AppliedPushes,
    Floats,
    Ids,
    PushResult,
    ScoredRows,
    Scoring,
    Version,
    incarnation,
    to_array,
    to_tensor,
)
from tapas.tables.exhaustive import log_sum_rows, scaled, topk_by_id
from tapas.tables.second_pass import SecondPass, select_here
from tapas.tables.shard import Shard


class CountedLock:
    """A lock that counts, by method, how often and how long it is held, and its queue."""

    def __init__(self) -> None:
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._waiting = 0
        self._queue: Counter[int] = Counter()  # length of the queue found by a request: times
        self._busy_seconds: dict[str, float] = {}
        self._requests: Counter[str] = Counter()

    @contextmanager
    def hold(self, method: str) -> Iterator[None]:
        with self._counting:
            self._queue[self._waiting] += 1
            self._waiting += 1
        try:
            with self._lock:
                started = time.perf_counter()
                try:
                    yield
                finally:
                    taken = time.perf_counter() - started
                    with self._counting:
                        self._requests[method] += 1
                        self._busy_seconds[method] = self._busy_seconds.get(method, 0.0) + taken
        finally:
            with self._counting:
                self._waiting -= 1

    def counts(self) -> dict[str, Any]:
        """The counts since the start; does not wait for the lock."""
        with self._counting:
            return {
                "requests": dict(self._requests),
                "busy_seconds": dict(self._busy_seconds),
                "queue": dict(self._queue),
            }


class RowServer:
    """Server `number` with its `shards` of tables, by name.

    Pushes of any worker with a sequence below `applied_below` are already in the rows. Methods
    may be called from several threads; one runs at a time.
    """

    def __init__(self, number: int, shards: Mapping[str, Shard], *, applied_below: int = 0):
        self.number, self.shards = number, dict(shards)
        self.applied_pushes, self.restored = AppliedPushes(applied_below), applied_below
        self.incarnation = incarnation()
        self.num_pushes = 0
        self._moved = {
            name: np.zeros(shard.num_classes, np.int32) for name, shard in shards.items()
        }
        self._lock = CountedLock()
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
    ) -> ScoredRows:
        """Run the second pass on this server's part of a pool; returns kept classes with rows.

        Args:
            query:  (A, D) queries that score the pool.
            target: (A, L) their targets.
            how:    None keeps all classes and scores nothing.
            ids, log_q, noise: (P,) the classes of the pool that are on this server.
            quota:  number of classes to keep.
            wanted: (T,) targets on this server, whose rows are returned, too.
        """
        with self._locked("score"):
            shard = self._shard(table)
            kept = Candidates(to_tensor(ids), to_tensor(log_q))
            if how is not None:
                second_pass = SecondPass(
                    quota,
                    how.rule,
                    how.temperature,
                    to_tensor(query),
                    to_tensor(target),
                    how.complete,
                    to_tensor(noise),
                )
                rows = self._positions(table, kept.ids)
                kept = select_here(shard, kept, rows, second_pass)
            rows = self._positions(table, torch.cat([kept.ids, to_tensor(wanted)]))
            weight, bias = shard._read(rows)
            return ScoredRows(
                kept.ids.numpy(),
                kept.log_q.numpy(),
                weight.numpy(),
                bias.numpy(),
                self._current_version(),
            )

    def rows(self, table: str, ids: Ids) -> tuple[Floats, Floats, Version]:
        """Weights (N, D) and biases (N,) of `ids` (N,), which must be on this server."""
        with self._locked("rows"):
            weight, bias = self._shard(table)._read(self._positions(table, to_tensor(ids)))
            return weight.numpy(), bias.numpy(), self._current_version()

    def push(
        self,
        worker: int | str,
        sequence: int,
        acknowledged_below: int,
        seen: int | None,
        gradients: Mapping[str, Gradients],
    ) -> PushResult:
        """Apply the `gradients` of each table, unless this push was applied before.

        The worker has the result of every push with a sequence below `acknowledged_below` and will
        not send these again. `seen` is the version of the oldest rows that it was computed from;
        None if it read none. A push that raises an error changes nothing.
        """
        with self._locked("push"):
            self.applied_pushes.forget(worker, acknowledged_below)
            if (
                earlier := self.applied_pushes.find(worker, sequence, self._current_version())
            ) is not None:
                return earlier
            positions = {
                table: self._positions(table, to_tensor(part.ids))
                for table, part in gradients.items()
            }
            updates = {table: self._update(table, part) for table, part in gradients.items()}
            for table, part in gradients.items():
                self._check_shapes(table, part)
            rows = collided = 0
            seen = self.num_pushes if seen is None else seen
            staleness = max(0, self.num_pushes - seen)
            self.num_pushes += 1
            for table, part in gradients.items():
                found = RowGradients(positions[table], to_tensor(part.weight), to_tensor(part.bias))
                self._shard(table).move_rows(updates[table], found, None)
                moved, at = self._moved[table], positions[table].numpy()
                rows += len(at)
                collided += int(np.count_nonzero(moved[at] > seen))
                moved[at] = self.num_pushes
            self._staleness[staleness] += 1
            self._rows += rows
            self._collided += collided
            result = PushResult(True, staleness, rows, collided, self._current_version())
            return self.applied_pushes.add(worker, sequence, result)

    def topk(
        self, table: str, query: Floats, k: int, exclude: Ids | None
    ) -> tuple[Floats, Ids, Version]:
        """The k best classes of this shard (fewer if it has fewer): scores and ids, (B, k)."""
        with self._locked("topk"):
            shard = self._shard(table)
            banned = None if exclude is None else to_tensor(exclude)
            if banned is not None:
                positions = self._unchecked_positions(shard, banned.clamp(min=0))
                foreign = (banned < 0) | (positions < 0) | (positions >= shard.num_classes)
                banned = positions.masked_fill(foreign, -1)
            start = shard.table_placement.start(self.number)
            value, ids = topk_by_id(
                shard.weight,
                shard.bias_or_none(),
                to_tensor(query),
                min(k, shard.num_classes),
                banned,
                lambda rows: shard.table_placement.ids_at(rows + start),
            )
            return to_array(value), to_array(ids), self._current_version()

    def log_partition(
        self, table: str, query: Floats, scale: float = 1.0
    ) -> tuple[Floats, Version]:
        """Log of the sum over this shard's classes of exp(`scale` * logit), (B,)."""
        with self._locked("log_partition"):
            shard = self._shard(table)
            bias, scaled_query = scaled(shard.bias_or_none(), to_tensor(query), scale)
            value = log_sum_rows(shard.weight, bias, scaled_query)
            return value.numpy(), self._current_version()

    def _check_shapes(self, table: str, part: Gradients) -> None:
        shard, size = self._shard(table), len(part.ids)
        found = (part.weight.shape, part.weight.dtype, part.bias.shape, part.bias.dtype)
        floats = np.dtype(np.float32)
        if found != ((size, shard.dim), floats, (size if shard.has_bias else 0,), floats):
            raise UsageError(
                f"a push to '{table}' has gradients {found} for {size} ids; expected float32, "
                f"({size}, {shard.dim}) for weights and one number for each bias. Nothing was "
                "changed."
            )

    def _update(self, table: str, part: Gradients) -> RowUpdate:
        """The update of the push, else that of this server."""
        ours: Any = self._shard(table).row_optimizer  # never None on servers
        if part.update is not None and type(part.update) is not type(ours):
            raise UsageError(
                f"server {self.number} updates '{table}' with {ours.name}, got a push for "
                f"{part.update.name}. Use the same optimizer on workers and servers. Nothing was "
                "changed."
            )
        return part.update or ours

    def state(self, table: str) -> tuple[dict[str, NDArray[Any]], int]:
        """All tensors of a shard in float32, in the order of its rows, and its updates."""
        with self._locked("state"):
            shard = self._shard(table)
            return {
                name: to_array(
                    value.to(torch.float32, copy=True)
                )  # rows may move before it is sent
                for name, value in shard.row_tensors().items()
            }, shard.num_updates

    def load(self, table: str, tensors: Mapping[str, NDArray[Any]], num_updates: int) -> None:
        """Load what `state` returned."""
        with self._locked("load"):
            shard = self._shard(table)
            for name, value in shard.row_tensors().items():
                value.copy_(to_tensor(tensors[name]))
            shard.num_updates = num_updates

    def num_updates(self, table: str) -> int:
        """Number of updates of `table` so far."""
        return self._shard(table).num_updates

    def status(self) -> dict[str, Any]:
        """Counts since this process started; does not wait for the lock."""
        return self._lock.counts() | {
            "server": self.number,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "incarnation": self.incarnation,
            "restored": self.restored,
            "num_pushes": self.num_pushes,
            "staleness": dict(self._staleness),
            "rows": self._rows,
            "collided": self._collided,
            "repeated": self.applied_pushes.num_repeated,
        }

    @contextmanager
    def _locked(self, method: str) -> Iterator[None]:
        with self._lock.hold(method), torch.no_grad():
            yield

    def _shard(self, table: str) -> Shard:
        if table not in self.shards:
            known = ", ".join(sorted(self.shards))
            raise UsageError(f"server {self.number} has no table '{table}'. It has: {known}.")
        return self.shards[table]

    def _positions(self, table: str, ids: Tensor) -> Tensor:
        """Positions of `ids` (N,) in the shard, checked because native code does not."""
        shard = self._shard(table)
        positions = self._unchecked_positions(shard, ids)
        foreign = (positions < 0) | (positions >= shard.num_classes)
        if bool(foreign.any()):
            raise UsageError(
                f"class {int(ids[foreign][0])} of '{table}' is not on server {self.number}: the "
                "caller uses another placement. Build tables and servers from one TableSpec."
            )
        return positions

    def _unchecked_positions(self, shard: Shard, ids: Tensor) -> Tensor:
        return shard.table_placement.permute(ids) - shard.table_placement.start(self.number)

    def _current_version(self) -> Version:
        return Version(self.incarnation, self.num_pushes)
