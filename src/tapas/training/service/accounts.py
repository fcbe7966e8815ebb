"""What the journal says of workers and servers: load, staleness, bytes, and what was lost."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tapas.tables.messages import Stamp
from tapas.training.journal import Value
from tapas.training.service.worker import Taken

ENCODER = "encoder"


@dataclass(slots=True)
class Account:
    """What the steps of a while took together."""

    steps: int = 0
    loss: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    round_trips: int = 0
    rows: int = 0
    collided: int = 0
    staleness: Counter[int] = field(default_factory=Counter)  # the worst of any server: steps
    begun: float = field(default_factory=time.perf_counter)

    def add(self, taken: Taken) -> None:
        self.steps += 1
        self.loss += taken.loss
        self.sent_bytes += taken.sent_bytes
        self.received_bytes += taken.received_bytes
        self.round_trips += taken.round_trips
        self.rows += sum(receipt.rows for receipt in taken.rows)
        self.collided += sum(receipt.collided for receipt in taken.rows)
        self.staleness[max(receipt.staleness for receipt in taken.rows)] += 1

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begun

    def numbers(self) -> dict[str, Value]:
        steps = max(1, self.steps)
        missed = sum(count * times for count, times in self.staleness.items())
        return {
            "steps_per_second": self.steps / max(1e-9, self.seconds),
            "sent_bytes_per_step": self.sent_bytes / steps,
            "received_bytes_per_step": self.received_bytes / steps,
            "round_trips_per_step": self.round_trips / steps,
            "rows_per_step": self.rows / steps,
            "collided_rows_per_step": self.collided / steps,
            "staleness_mean": missed / steps,
            "staleness_max": max(self.staleness, default=0),
            **{f"staleness_{n}_steps": self.staleness[n] for n in sorted(self.staleness)},
        }


class Ledgers:
    """Which process of each server has applied which steps since the last checkpoint.

    A server that dies comes back as it was at that checkpoint. What its earlier processes have
    applied since is lost, unless the step was taken again.
    """

    def __init__(self) -> None:
        self._applied: dict[str, dict[int, str]] = {}
        self._current: dict[str, str] = {}

    def note(self, taken: Taken) -> None:
        for name, stamp in stamps_of(taken).items():
            self._applied.setdefault(name, {})[taken.number] = stamp.incarnation

    def close(self, stamps: Mapping[str, Stamp]) -> dict[str, int]:
        """At a checkpoint that the processes with `stamps` have saved, while no step is under way.

        The servers that were started again since the last one, and how many updates of each
        were rolled back.
        """
        lost = {}
        for name, stamp in stamps.items():
            applied = self._applied.get(name, {})
            others = sum(process != stamp.incarnation for process in applied.values())
            if others or self._current.get(name, stamp.incarnation) != stamp.incarnation:
                lost[name] = others
            self._current[name] = stamp.incarnation
        self._applied = {}
        return lost


def stamps_of(taken: Taken) -> dict[str, Stamp]:
    rows = {f"server {j}": receipt.stamp for j, receipt in enumerate(taken.rows)}
    return rows | {ENCODER: taken.encoder.stamp}


class Load:
    """How busy each server was between two looks at it."""

    def __init__(self) -> None:
        self._before: dict[int, dict[str, Any]] = {}
        self._at = time.perf_counter()

    def numbers(self, statuses: Sequence[Mapping[str, Any]]) -> dict[str, Value]:
        """Of each server: the share of time it was busy, requests, and who waits before one."""
        now = time.perf_counter()
        seconds, self._at = max(1e-9, now - self._at), now
        found: dict[str, Value] = {}
        for number, status in enumerate(statuses):
            before = self._before.get(number, {})
            if before.get("incarnation") != status["incarnation"]:
                before = {}
            queue = Counter(status["queue"])
            queue.subtract(before.get("queue", {}))
            requests = sum(queue.values())
            waiting = sum(length * times for length, times in queue.items())
            busy = sum(status["busy_seconds"].values())
            busy -= sum(before.get("busy_seconds", {}).values())
            name = f"server_{number}"
            found[f"{name}_busy"] = busy / seconds
            found[f"{name}_requests"] = requests
            found[f"{name}_queue"] = waiting / max(1, requests)
            found[f"{name}_queue_max"] = max((n for n, times in queue.items() if times), default=0)
            self._before[number] = dict(status)
        return found
