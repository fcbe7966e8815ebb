"""Turns at a server: one at a time, and how long the others wait."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
