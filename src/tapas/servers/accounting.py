"""Statistics of workers and servers for the journal: load, staleness, traffic, lost updates."""

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
    """Sums over the steps since the last entry of the journal."""

    steps: int = 0
    loss: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    round_trips: int = 0
    rows: int = 0
    collided: int = 0
    staleness: Counter[int] = field(default_factory=Counter)  # largest of all servers: steps
    encoder_staleness: int = 0  # the largest
    step_seconds: float = 0.0  # summed over steps, which overlap
    started: float | None = None  # start of the first step
    ended: float = 0.0  # end of the last step

    def begin(self) -> None:
        if self.started is None:
            self.started = time.perf_counter()

    def add(self, result: StepResult) -> None:
        self.steps += 1
        self.ended = time.perf_counter()
        self.step_seconds += result.seconds
        self.encoder_staleness = max(self.encoder_staleness, result.encoder.staleness)
        self.loss += result.loss
        self.sent_bytes += result.sent_bytes
        self.received_bytes += result.received_bytes
        self.round_trips += result.round_trips
        self.rows += sum(push.rows for push in result.rows)
        self.collided += sum(push.collided for push in result.rows)
        self.staleness[max(push.staleness for push in result.rows)] += 1

    @property
    def seconds(self) -> float:
        """From the start of the first step to the end of the last."""
        return 0.0 if self.started is None else self.ended - self.started

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
    """The process of a server that saved a checkpoint."""

    incarnation: str
    restored: int  # step of the checkpoint that it started from


class LostUpdates:
    """Counts the updates that are lost when a server restarts from a checkpoint.

    A restarted server has the rows of a checkpoint. Updates that an earlier process applied
    after it are lost, unless the step was repeated. So this keeps, for each server, which
    process applied which step.
    """

    def __init__(self) -> None:
        self._applied: dict[str, dict[int, str]] = {}
        self._current: dict[str, str] = {}
        self._seen: set[str] = set()  # all processes that have answered
        self._newest = 0  # the step of the newest checkpoint

    def begin(self, statuses: Mapping[str, Mapping[str, Any]]) -> None:
        """Note the processes of the servers before the first step."""
        self._current = {name: status["incarnation"] for name, status in statuses.items()}
        self._seen.update(self._current.values())

    def note(self, result: StepResult) -> list[str]:
        """Note a step that is done. Returns the servers whose new process answered first here."""
        new = []
        for name, version in versions_in(result).items():
            self._applied.setdefault(name, {})[result.number] = version.incarnation
            if version.incarnation not in self._seen:
                new.append(name)
                self._seen.add(version.incarnation)
        return new

    def close(self, step: int, saved: Mapping[str, SavedBy]) -> dict[str, int]:
        """Call at the checkpoint of `step`, written by the processes `saved`, between steps.

        Returns the servers that were restarted since the last checkpoint, with the number of
        updates that each has lost.
        """
        lost = {}
        for name, now in saved.items():
            applied = self._applied.get(name, {})
            gone = {n for n, who in applied.items() if who != now.incarnation and n >= now.restored}
            if gone or self._current[name] != now.incarnation:
                lost[name] = len(gone)
            self._current[name] = now.incarnation
            self._seen.add(now.incarnation)
            # a server that dies during this save may restart from the checkpoint before it
            left = {n: who for n, who in applied.items() if n >= self._newest and n not in gone}
            self._applied[name] = left
        self._newest = step
        return lost


def versions_in(result: StepResult) -> dict[str, Version]:
    rows = {f"server {j}": push.version for j, push in enumerate(result.rows)}
    return rows | {ENCODER: result.encoder.version}


class ServerLoad:
    """How busy each server was since the last call of `numbers`."""

    def __init__(self) -> None:
        self._before: dict[str, dict[str, Any]] = {}
        self._at = time.perf_counter()

    def numbers(self, statuses: Mapping[str, Mapping[str, Any]]) -> dict[str, Value]:
        """For each server: busy share of the time, requests, mean and maximum queue length."""
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
