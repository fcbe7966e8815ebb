"""`RayCall`: one call of a Ray actor, with limits for starting, working and silence."""

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tapas.errors import PeerError
from tapas.servers.ray_session import dead_parts, import_ray

if TYPE_CHECKING:
    from tapas.servers.ray_peers import RayPeers

MAX_DEATHS = 4  # of a peer during one call: more means that the call itself kills it
POLL_SECONDS = 0.25  # longest wait for Ray before the limits are checked again
RETRY_SECONDS = 0.1  # between two attempts to reach a peer that is restarting


class ProcessInfo(NamedTuple):
    """A process of a peer; another one after each restart."""

    name: str
    pid: int
    host: str


@dataclass(slots=True)
class PeerState:
    """What this process knows of a peer."""

    process: ProcessInfo | None = None
    is_up: bool = False  # built, and not known to have died since
    last_answer: float = -float("inf")  # when it last answered
    processes: set[str] = field(default_factory=set)  # names of all that have answered

    def answered(self, process: ProcessInfo, *, is_built: bool) -> None:
        self.process, self.is_up, self.last_answer = process, is_built, time.monotonic()
        self.processes.add(process.name)


class RayCall:
    """A call of one peer, repeated whenever the peer's process dies during it."""

    def __init__(self, peers: "RayPeers", number: int, method: str, args: tuple[Any, ...]):
        self.number = number
        self.awaited: Any  # Ray's reference to the next answer; None while the peer is down
        self._pending_ping: Any
        self._peers, self._method, self._args = peers, method, args
        self._actor, self._state = peers._actors[number], peers._states[number]
        self._lock = threading.Lock()
        self._deaths, self._lost_since, self._lost_at = 0, 0.0, 0.0
        self._outcome: tuple[Any, Exception | None] | None = None
        self._send()

    def done(self) -> bool:
        with self._lock:
            return self._poll(0.0)

    def answer(self) -> Any:
        with self._lock:
            while not self._poll(POLL_SECONDS):
                pass
            value, error = self._outcome or (None, None)
        if error is not None:
            raise error
        return value

    def _send(self) -> None:
        # as one tuple: Ray serializes every argument separately, and stores large ones
        shared = {i: a for i, a in enumerate(self._args) if isinstance(a, import_ray().ObjectRef)}
        plain = tuple(None if i in shared else a for i, a in enumerate(self._args))
        self.awaited = self._actor.call.remote(self._method, plain, tuple(shared), *shared.values())
        self._is_sent, self._made = True, time.monotonic()
        self._pending_ping, self._is_alive, self._ping_answered = None, False, self._made

    def _ping(self) -> Any:
        return self._actor.ping.options(concurrency_group="ping").remote()

    def _poll(self, seconds: float) -> bool:
        """Wait at most `seconds` for something to happen; returns whether the call is done."""
        if self._outcome is not None:
            return True
        if self.awaited is None:
            time.sleep(min(seconds, RETRY_SECONDS))
            if time.monotonic() < self._lost_at + RETRY_SECONDS:
                return False
            self.awaited, self._is_sent = self._ping(), False
        ray = import_ray()
        gone = ray.exceptions.RayActorError, ray.exceptions.ObjectLostError
        try:
            process, value, *error = ray.get(self.awaited, timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            self._check_patience(ray)
        except gone as failure:
            self._lost(failure, is_final=isinstance(failure, ray.exceptions.ActorDiedError))
        except Exception as failure:
            self._give_up(f"cannot run '{self._method}': {_first_line(failure)}")
        else:
            self._state.answered(process, is_built=self._is_sent or value)
            if self._is_sent:
                self._finish(value, error[0])
            else:
                self._send()
        return self._outcome is not None

    def _lost(self, error: Exception, *, is_final: bool) -> None:
        """The peer has died, or does not exist yet: ping it until it answers, then call again."""
        now, patience, why = time.monotonic(), self._peers.start_seconds, _first_line(error)
        self._state.is_up = False
        if self._is_sent:
            self._deaths, self._lost_since = self._deaths + 1, now
        self.awaited, self._lost_at = None, now
        if is_final and not self._is_sent and (dead := dead_parts()):
            self._give_up(f"has ended because Ray has died on this machine ({', '.join(dead)})")
        elif is_final and not self._is_sent:
            self._give_up(f"has ended and is not restarted: {why}")
        elif self._deaths >= MAX_DEATHS:
            doing = f"running '{self._method}'" if self._method else "being built"
            self._give_up(f"has died {self._deaths} times in a row while {doing}: {why}")
        elif now - self._lost_since > patience:
            self._give_up(f"has died and was not restarted within {patience:g} s: {why}")

    def _check_patience(self, ray: Any) -> None:
        """Give up on a peer that is silent for too long, after a ping whether it is alive."""
        state, limit, start_limit = self._state, self._peers.seconds, self._peers.start_seconds
        work_limit = self._peers.work_seconds or limit
        self._check_ping(ray)
        now = time.monotonic()
        working = now - max(self._made, state.last_answer)
        silent = min(working, now - self._ping_answered)
        since = self._made if self._is_sent else self._lost_since
        if working > work_limit and state.is_up and self._is_alive:
            doing = f"has been running '{self._method}' for {work_limit:g} s"
            self._give_up(f"{doing}. If it needs that long, raise the limit")
        elif silent > limit and (state.is_up or self._is_alive):
            self._give_up(f"has not answered for {limit:g} s: it hangs or is unreachable")
        elif now - since > start_limit and not state.is_up:
            self._give_up(f"is not ready after {start_limit:g} s")
        elif (
            self._is_sent and self._pending_ping is None and (silent > limit / 2 or not state.is_up)
        ):
            self._pending_ping = self._ping()

    def _check_ping(self, ray: Any) -> None:
        if self._pending_ping is None:
            return
        try:
            process, is_built = ray.get(self._pending_ping, timeout=0)
        except ray.exceptions.RayError as failure:
            if not isinstance(failure, ray.exceptions.GetTimeoutError):
                self._pending_ping = None  # the call itself will fail, too
            return
        self._pending_ping, self._is_alive, self._ping_answered = None, True, time.monotonic()
        if not (self._state.is_up and is_built and process == self._state.process):
            self._state.answered(process, is_built=is_built)

    def _give_up(self, why: str) -> None:
        self._finish(None, PeerError(f"{self._peers.describe(self.number)} {why}.", (self.number,)))

    def _finish(self, value: Any, error: Exception | None) -> None:
        self._outcome = value, error
        self.awaited = self._pending_ping = None
        self._args = ()  # frees large arrays


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
