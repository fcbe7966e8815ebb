"""Peers as Ray actors: each in a process of its own, started again when it dies.

Ray brings a dead process back, but not what it had been asked: a call is made again here.
Arrays that arrive are read-only, in memory that all processes of a host share.
"""

import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

import torch

from tapas.errors import PeerError, TapasError, UsageError
from tapas.servers.peers import Call, call_all
from tapas.servers.ray_calls import POLL_SECONDS, RETRY_SECONDS, PeerState, ProcessInfo, RayCall
from tapas.servers.ray_session import import_ray

INLINE_BYTES = 1_000_000  # of an array that travels with its call


class ActorHost:
    """The process of one peer; builds it when first asked, so that it can be reached before."""

    def __init__(self, name: str, factory: bytes):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us
        torch.set_num_threads(1)
        self._factory, self._lock, self._is_built = factory, threading.Lock(), False
        self._error: Exception | None = None
        self._process = ProcessInfo(
            uuid4().hex, os.getpid(), import_ray().util.get_node_ip_address()
        )
        self._name = f"{name} (pid {self._process.pid} on host {self._process.host})"

    def ping(self) -> tuple[ProcessInfo, bool]:
        """Who is here, and whether it is ready to answer."""
        return self._process, self._is_built

    def call(
        self, method: str, args: tuple[Any, ...] = (), places: tuple[int, ...] = (), *shared: Any
    ) -> tuple[ProcessInfo, Any, Exception | None]:
        """What `method` answers, and what it raises; without a method, the peer is just built.

        What is `shared` by several calls are the arguments at `places`.
        """
        with self._lock:
            if not self._is_built:
                try:
                    self._target = import_ray().cloudpickle.loads(self._factory)()
                except BaseException as error:
                    self._error = self._as_error(error, "could not be built")
                self._is_built = True
        if self._error or not method:
            return self._process, None, self._error
        try:
            given = dict(enumerate(args)) | dict(zip(places, shared, strict=True))
            return self._process, getattr(self._target, method)(*given.values()), None
        except BaseException as error:  # an exit too: only a signal ends this process
            return self._process, None, self._as_error(error, f"failed in '{method}'")

    def _as_error(self, error: BaseException, did: str) -> Exception:
        """An error of ours as it is, others by the last line of what Python says of them."""
        last_line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        told: Exception = PeerError(f"{self._name} {did}: {last_line}")
        if isinstance(error, TapasError):
            with suppress(Exception):  # its constructor may want more than the words
                told = pickle.loads(pickle.dumps(error))
        told.add_note(f"In {self._name}:\n" + "".join(traceback.format_exception(error)))
        return told


class RayPeers:
    """Peers that Ray runs, for whoever has started them and for those that are handed them."""

    def __init__(
        self,
        kind: str,
        actors: Sequence[Any],
        seconds: float,
        start_seconds: float,
        work_seconds: float | None,
    ):
        self.kind, self.size, self.seconds = kind, len(actors), seconds
        self.start_seconds, self.work_seconds = start_seconds, work_seconds
        self._actors, self._is_mine = list(actors), True
        self._seen = [PeerState() for _ in actors]

    @classmethod
    def start(
        cls,
        kind: str,
        factories: Sequence[Callable[[], Any]],
        *,
        threads: int = 1,
        seconds: float = 60.0,
        start_seconds: float = 600.0,
        work_seconds: float | None = None,
        wait: bool = True,
    ) -> "RayPeers":
        """One process for each of `factories`, which builds the peer.

        Args:
            factories: called in the process, and again in the next one when that has died.
            threads: so many calls of one peer run at the same time; with 1, in the order made.
            seconds: a peer that owes an answer and is silent for so long is given up.
            start_seconds: the same, for a process that starts and the peer that is built in it.
            work_seconds: for one that is alive, and works on an answer; by default `seconds`.
            wait: until all are built; `ready` does it later.
        """
        limits = {"threads": threads, "seconds": seconds, "start_seconds": start_seconds}
        for name, value in limits.items():
            if not value > 0:
                raise UsageError(f"{name} must be above 0, got {value!r}.")
        host = import_ray().remote(
            # more processes than cores are welcome; Ray spreads what asks for something
            num_cpus=0.001,
            scheduling_strategy="SPREAD",
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=threads,
            concurrency_groups={"ping": 1},
        )(ActorHost)
        # as bytes: what hands peers on would lie in the object store, lost when that is full
        packed = [import_ray().cloudpickle.dumps(factory) for factory in factories]
        actors = [host.remote(f"{kind} {number}", factory) for number, factory in enumerate(packed)]
        peers = cls(kind, actors, seconds, start_seconds, work_seconds)
        if wait:
            peers.ready()
        return peers

    def ready(self) -> None:
        """Wait until all are built; if one cannot be, none is kept."""
        with ExitStack() as stack:
            stack.callback(self.close)
            call_all(self, "")
            stack.pop_all()

    def call(self, number: int, method: str, *args: Any) -> RayCall:
        if not 0 <= number < self.size:
            raise UsageError(f"there is no {self.kind} {number}: there are {self.size}, from 0.")
        return RayCall(self, number, method, args)

    def share(self, value: Any) -> Any:
        if getattr(value, "nbytes", INLINE_BYTES) < INLINE_BYTES:
            return value  # cheaper several times than stored once
        return import_ray().put(value)

    def any_done(self, calls: Sequence[Call], seconds: float) -> list[Call]:
        until = time.monotonic() + seconds
        while True:
            found = [call for call in calls if call.done()]
            left = until - time.monotonic()
            if found or left <= 0 or not calls:
                return found
            awaited = [c.awaited for c in calls if isinstance(c, RayCall) and c.awaited]
            if len(awaited) == len(calls):
                import_ray().wait(awaited, timeout=min(left, POLL_SECONDS))
            else:
                time.sleep(min(left, RETRY_SECONDS))

    def restarts(self) -> list[int]:
        """How often each peer was started again, as far as its answers to us have shown."""
        return [max(0, len(seen.processes) - 1) for seen in self._seen]

    def describe(self, number: int) -> str:
        """Such as "server 2 (pid 4301 on host 10.0.0.7)"."""
        process = self._seen[number].process
        return f"{self.kind} {number}" + (
            f" (pid {process.pid} on host {process.host})" if process else ""
        )

    def close(self) -> None:
        """End the processes, if they were started from here. Safe to call twice."""
        mine, self._is_mine = self._is_mine, False
        for actor in self._actors if mine and import_ray().is_initialized() else ():
            import_ray().kill(actor, no_restart=True)

    def __getstate__(self) -> dict[str, Any]:
        # another host has another clock
        seen = [replace(each, last_answer=-float("inf")) for each in self._seen]
        return self.__dict__ | {"_is_mine": False, "_seen": seen}
