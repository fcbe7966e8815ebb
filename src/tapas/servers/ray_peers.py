"""`RayPeers`: peers as Ray actors, each in its own process, restarted when it dies.

Ray restarts a process but does not repeat its calls; `RayCall` does. Arrays arrive read-only, in
memory that all processes of a host share.
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

INLINE_BYTES = 1_000_000  # smaller arrays are sent with the call itself


class ActorHost:
    """The actor of one peer; builds the peer in its first call, so that pings work before."""

    def __init__(self, name: str, factory: bytes):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver
        torch.set_num_threads(1)
        self._factory, self._lock, self._is_built = factory, threading.Lock(), False
        self._error: Exception | None = None
        self._process = ProcessInfo(
            uuid4().hex, os.getpid(), import_ray().util.get_node_ip_address()
        )
        self._name = f"{name} (pid {self._process.pid} on host {self._process.host})"

    def ping(self) -> tuple[ProcessInfo, bool]:
        """This process, and whether the peer is built."""
        return self._process, self._is_built

    def call(
        self, method: str, args: tuple[Any, ...] = (), positions: tuple[int, ...] = (), *shared: Any
    ) -> tuple[ProcessInfo, Any, Exception | None]:
        """Call `method` of the peer; returns its answer and its error. "" only builds the peer.

        `shared` are the arguments at `positions`, which several calls share.
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
            given = dict(enumerate(args)) | dict(zip(positions, shared, strict=True))
            return self._process, getattr(self._target, method)(*given.values()), None
        except BaseException as error:  # SystemExit, too: it must not end this process
            return self._process, None, self._as_error(error, f"failed in '{method}'")

    def _as_error(self, error: BaseException, did: str) -> Exception:
        """`error` if it is a TapasError, else a PeerError with its last line."""
        last_line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        reported: Exception = PeerError(f"{self._name} {did}: {last_line}")
        if isinstance(error, TapasError):
            with suppress(Exception):  # its constructor may take other arguments
                reported = pickle.loads(pickle.dumps(error))
        reported.add_note(f"In {self._name}:\n" + "".join(traceback.format_exception(error)))
        return reported


def _named_host(name: str) -> type[ActorHost]:
    """`ActorHost` under another class name, as which Ray shows it in `ps`: ray::tapas_server_0."""
    return type(f"tapas_{name.replace(' ', '_')}", (ActorHost,), {})


class RayPeers:
    """Peers that Ray runs; can be pickled and passed to other processes, which cannot stop them."""

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
        self._states = [PeerState() for _ in actors]

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
        """Start one process for each of `factories`.

        Args:
            factories: build a peer in its process, and again after a restart.
            threads: calls of one peer that run at the same time; with 1, in order.
            seconds: limit of silence while an answer is due; then a PeerError.
            start_seconds: the same while a process starts and its peer is built.
            work_seconds: the same while a peer is alive and works; by default `seconds`.
            wait: return when all are built; else call `ready` later.
        """
        limits = {"threads": threads, "seconds": seconds, "start_seconds": start_seconds}
        for name, value in limits.items():
            if not value > 0:
                raise UsageError(f"{name} must be above 0, got {value!r}.")
        remote = import_ray().remote(
            # nearly 0, to allow more processes than cores; Ray spreads only actors above 0
            num_cpus=0.001,
            scheduling_strategy="SPREAD",
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=threads,
            concurrency_groups={"ping": 1},
        )
        # as bytes: a factory with peers in it would be put into the object store, which may fill up
        packed = [import_ray().cloudpickle.dumps(factory) for factory in factories]
        names = [f"{kind} {number}" for number in range(len(packed))]
        actors = [
            remote(_named_host(name)).remote(name, factory)
            for name, factory in zip(names, packed, strict=True)
        ]
        peers = cls(kind, actors, seconds, start_seconds, work_seconds)
        if wait:
            peers.ready()
        return peers

    def ready(self) -> None:
        """Wait until all are built; if one fails, stop all."""
        with ExitStack() as stack:
            stack.callback(self.close)
            call_all(self, "")
            stack.pop_all()

    def call(self, number: int, method: str, *args: Any) -> RayCall:
        if not 0 <= number < self.size:
            raise UsageError(f"there is no {self.kind} {number}. Numbers are 0 to {self.size - 1}.")
        return RayCall(self, number, method, args)

    def share(self, value: Any) -> Any:
        if getattr(value, "nbytes", INLINE_BYTES) < INLINE_BYTES:
            return value  # sending it several times is cheaper than storing it once
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
        """How often each peer was restarted, as seen in its answers."""
        return [max(0, len(state.processes) - 1) for state in self._states]

    def describe(self, number: int) -> str:
        """Such as "server 2 (pid 4301 on host 10.0.0.7)"."""
        process = self._states[number].process
        return f"{self.kind} {number}" + (
            f" (pid {process.pid} on host {process.host})" if process else ""
        )

    def close(self) -> None:
        """Stop the processes if this object started them. Safe to call twice."""
        mine, self._is_mine = self._is_mine, False
        for actor in self._actors if mine and import_ray().is_initialized() else ():
            import_ray().kill(actor, no_restart=True)

    def __getstate__(self) -> dict[str, Any]:
        # clocks of other hosts differ
        states = [replace(each, last_answer=-float("inf")) for each in self._states]
        return self.__dict__ | {"_is_mine": False, "_states": states}
