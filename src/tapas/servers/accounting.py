"""What the journal says of workers and servers: load, staleness, bytes, and what was lost."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tapas.servers.messages import Version
from tapas.servers.worker import StepResult
from tapas.training.journal import Value

ENCODER = "encoder"


@dataclass(slots=True)
class StepStatistics:
    """What the steps of a while took together."""

    steps: int = 0
    loss: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    round_trips: int = 0
    rows: int = 0
    collided: int = 0
    staleness: Counter[int] = field(default_factory=Counter)  # the worst of any server: steps
    encoder_staleness: int = 0  # the worst
    step_seconds: float = 0.0  # summed over steps, which overlap
    begun: float | None = None  # the first step
    ended: float = 0.0  # the last

    def begin(self) -> None:
        if self.begun is None:
            self.begun = time.perf_counter()

    def add(self, taken: StepResult) -> None:
        self.steps += 1
        self.ended = time.perf_counter()
        self.step_seconds += taken.seconds
        self.encoder_staleness = max(self.encoder_staleness, taken.encoder.staleness)
        self.loss += taken.loss
        self.sent_bytes += taken.sent_bytes
        self.received_bytes += taken.received_bytes
        self.round_trips += taken.round_trips
        self.rows += sum(result.rows for result in taken.rows)
        self.collided += sum(result.collided for result in taken.rows)
        self.staleness[max(result.staleness for result in taken.rows)] += 1

    @property
    def seconds(self) -> float:
        """From the beginning of the first step to the end of the last."""
        return 0.0 if self.begun is None else self.ended - self.begun

    def numbers(self) -> dict[str, Value]:
        steps = max(1, self.steps)
        missed = sum(count * times for count, times in self.staleness.items())
        return {
            "steps_per_second": self.steps / max(1e-9, self.seconds),
            "step_seconds": self.step_seconds / steps,
            "sent_bytes_per_step": self.sent_bytes / steps,
            "received_bytes_per_step": self.received_bytes / steps,
            "round_trips_per_step": self.round_trips / steps,
            "rows_per_step": self.rows / steps,
            "collided_rows_per_step": self.collided / steps,
            "staleness_mean": missed / steps,
            "staleness_max": max(self.staleness, default=0),
            "encoder_staleness_max": self.encoder_staleness,
            **{f"staleness_{n}_steps": self.staleness[n] for n in sorted(self.staleness)},
        }


class SavedBy(NamedTuple):
    """Which process of a server has saved, and the step of the checkpoint that it began from."""

    incarnation: str
    restored: int


class LostUpdates:
    """Which process of each server has applied which steps, as far back as one may begin from.

    A server that dies comes back as it was at a checkpoint. What its earlier processes have
    applied since is lost, unless the step was taken again.
    """

    def __init__(self) -> None:
        self._applied: dict[str, dict[int, str]] = {}
        self._current: dict[str, str] = {}
        self._newest = 0  # the step of the newest checkpoint

    def begin(self, statuses: Mapping[str, Mapping[str, Any]]) -> None:
        """Who is there before the first step."""
        self._current = {name: status["incarnation"] for name, status in statuses.items()}

    def note(self, taken: StepResult) -> None:
        for name, version in versions_in(taken).items():
            self._applied.setdefault(name, {})[taken.number] = version.incarnation

    def close(self, step: int, saved: Mapping[str, SavedBy]) -> dict[str, int]:
        """At the checkpoint of `step` that the processes `saved`, while no step is under way.

        The servers that were started again since the last one, and how many updates of each
        were rolled back.
        """
        lost = {}
        for name, now in saved.items():
            applied = self._applied.get(name, {})
            gone = {n for n, who in applied.items() if who != now.incarnation and n >= now.restored}
            if gone or self._current[name] != now.incarnation:
                lost[name] = len(gone)
            self._current[name] = now.incarnation
            # a server that dies while this one is saved may begin from the one before it
            left = {n: who for n, who in applied.items() if n >= self._newest and n not in gone}
            self._applied[name] = left
        self._newest = step
        return lost


def versions_in(taken: StepResult) -> dict[str, Version]:
    rows = {f"server {j}": result.version for j, result in enumerate(taken.rows)}
    return rows | {ENCODER: taken.encoder.version}


class ServerLoad:
    """How busy each server was between two looks at it."""

    def __init__(self) -> None:
        self._before: dict[str, dict[str, Any]] = {}
        self._at = time.perf_counter()

    def numbers(self, statuses: Mapping[str, Mapping[str, Any]]) -> dict[str, Value]:
        """Of each server: the share of time it was busy, requests, and who waits before one."""
        now = time.perf_counter()
        seconds, self._at = max(1e-9, now - self._at), now
        found: dict[str, Value] = {}
        for server, status in statuses.items():
            before = self._before.get(server, {})
            if before.get("incarnation") != status["incarnation"]:
                before = {}
            queue = Counter(status["queue"])
            queue.subtract(before.get("queue", {}))
            requests = sum(queue.values())
            waiting = sum(length * times for length, times in queue.items())
            busy = sum(status["busy_seconds"].values())
            busy -= sum(before.get("busy_seconds", {}).values())
            name = server.replace(" ", "_")
            found[f"{name}_busy"] = busy / seconds
            found[f"{name}_requests"] = requests
            found[f"{name}_queue"] = waiting / max(1, requests)
            found[f"{name}_queue_max"] = max((n for n, times in queue.items() if times), default=0)
            self._before[server] = dict(status)
        return found
