"""Servers that measure their scoring or skip it, and a round trip whose parts are timed."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tapas.candidates import Candidates
from tapas.servers.messages import Floats, Ids, ScoredRows, Scoring, to_tensor
from tapas.servers.peers import Call, Peers
from tapas.servers.row_server import RowServer
from tapas.servers.served_table import ServedTable, fetched_rows
from tapas.tables.gradients import StoredRows
from tapas.tables.second_pass import SecondPass
from tapas.tables.shard import TableSpec


class Clocked(RowServer):
    """A server that measures the CPU seconds of its scoring; `echo` answers without scoring."""

    cpu_seconds = 0.0
    filler: Floats = np.ones((0, 1), np.float32)

    def score(self, *request: Any) -> ScoredRows:
        started = time.thread_time()
        try:
            return super().score(*request)
        finally:
            self.cpu_seconds += time.thread_time() - started

    def echo(
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
        """Take the arguments of `score` and return an answer of the same size, without scoring."""
        for array in (query, target, ids, log_q, noise, wanted):
            to_tensor(array)  # `score` copies them out of the message, too
        kept = min(quota, len(ids))
        size = kept + len(wanted)
        if len(self.filler) < size:  # reused, since making the answer is part of scoring
            self.filler = np.ones((size, self.shards[table].dim), np.float32)
        rows, ones = self.filler[:size], np.ones(size, np.float32)
        return ScoredRows(ids[:kept].copy(), ones[:kept], rows, ones, self._current_version())

    def clocks(self) -> tuple[float, float]:
        """Seconds spent in `score` so far, and the CPU seconds of these."""
        return self.status()["busy_seconds"].get("score", 0.0), self.cpu_seconds


def make_server(spec: TableSpec, number: int) -> Clocked:
    return Clocked(number, {"rows": spec.shard(number)})


class Watched:
    """`peers` with the seconds spent in calls to them; `instead` replaces verbs by others."""

    def __init__(self, peers: Peers, instead: dict[str, str] | None = None):
        self.peers, self.kind, self.size = peers, peers.kind, peers.size
        self.instead, self.seconds = instead or {}, Counter[str]()

    def share(self, value: Any) -> Any:
        return self.timed("sharing", self.peers.share, value)

    def call(self, number: int, verb: str, *args: Any) -> "WatchedCall":
        verb = self.instead.get(verb, verb)
        return WatchedCall(self.timed("sending", self.peers.call, number, verb, *args), self)

    def timed(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        try:
            return call(*args)
        finally:
            self.seconds[what] += time.perf_counter() - started


class WatchedCall:
    def __init__(self, call: Call, watch: Watched):
        self.number, self._call, self._watch = call.number, call, watch

    def answer(self) -> Any:
        return self._watch.timed("waiting", self._call.answer)


class Batch(NamedTuple):
    """The input of a round trip."""

    pool: Candidates
    second_pass: SecondPass
    target: Tensor  # (B, 1)


class RoundTrip(NamedTuple):
    """The output of a round trip, and its seconds.

    "whole" is the total: the worker's "splitting" of the pool and "joining" of the answers, and
    "between", which is sharing, sending and waiting.
    """

    kept: Candidates
    rows: StoredRows
    seconds: dict[str, float]


def round_trip(table: ServedTable, batch: Batch) -> RoundTrip:
    """The part of `ServedTable.sampled_costs` before the loss; its servers are `Watched`."""
    watch: Any = table.channel.servers
    watch.seconds.clear()
    started = time.perf_counter()
    wanted = torch.unique(batch.target[batch.target >= 0])
    parts = table._split(wanted)
    found = table._score(batch.pool, batch.second_pass, [wanted[part] for part in parts])
    answered = time.perf_counter()
    kept = table._kept(found)
    rows = fetched_rows(batch.target, wanted, parts, found, table.dim)
    ended = time.perf_counter()
    between = watch.seconds.total()
    seconds = {
        "whole": ended - started,
        "between": between,
        "splitting": answered - started - between,
        "joining": ended - answered,
    }
    return RoundTrip(kept, rows, seconds | dict(watch.seconds))
