"""Requests that arrive while others are computed wait, and are then computed together."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, TypeVar

Job = TypeVar("Job")
Answer = TypeVar("Answer")
LEAST_PATIENCE, FIRST_PATIENCE, MOST_PATIENCE = 1 / 8, 1 / 2, 1.0  # times the last call's seconds
MOST_SECONDS = 0.05  # of patience


class BusyError(Exception):
    """More waits than can be answered soon."""


@dataclass(slots=True)
class _Waiting(Generic[Job, Answer]):
    job: Job
    size: int
    answer: "asyncio.Future[Answer]"


class Batches(Generic[Job, Answer]):
    """Calls `work` with all jobs that wait, in a thread of `executor`, one call at a time.

    `work` returns an answer or an exception for each job. A call gets jobs whose sizes sum to at
    most `most_together`, or a single larger one. Where the sizes of those that wait sum to more
    than `most_waiting`, further ones are refused with `BusyError`.

    Clients that ask again as soon as they are answered would be served in two groups that take
    turns, although a call for both takes little longer than for one. So after a call those that
    wait are kept a little longer, until as many have come as were there before. How much longer
    doubles when all come in time, and halves when more than a quarter of them do not.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Job]], Sequence[Answer | Exception]],
        executor: Executor,
        *,
        most_together: int,
        most_waiting: int,
        on_batch: Callable[[int], object] = lambda size: None,
    ):
        self._work, self._executor, self._on_batch = work, executor, on_batch
        self._most_together, self._most_waiting = most_together, most_waiting
        self._waiting: list[_Waiting[Job, Answer]] = []
        self._num_waiting = 0
        self._running: asyncio.Task[None] | None = None
        self._expected = 0  # jobs: those of the last call, and those that waited when it ended
        self._all_here: asyncio.Event | None = None  # set when that many wait
        self._patience, self._call_seconds, self._call_ended = FIRST_PATIENCE, 0.0, 0.0

    async def submit(self, job: Job, size: int = 1) -> Answer:
        """The answer to `job`; raises what `work` found wrong with it."""
        if self._num_waiting and self._num_waiting + size > self._most_waiting:
            raise BusyError
        waiting = _Waiting(job, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._num_waiting += size
        if self._all_here is not None and self._is_enough:
            self._all_here.set()
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        answer: Answer = await waiting.answer
        return answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await self._gather()
            batch = self._next()
            if not batch:  # their clients are gone
                continue
            size = sum(each.size for each in batch)
            self._on_batch(size)
            jobs = [each.job for each in batch]
            start = loop.time()
            try:
                found = await loop.run_in_executor(self._executor, self._work, jobs)
            except Exception as error:
                found = [error] * len(batch)
            self._call_ended = loop.time()
            self._call_seconds = self._call_ended - start
            self._expected = len(batch) + len(self._waiting)
            for each, answer in zip(batch, found, strict=True):
                if each.answer.done():  # the client is gone
                    continue
                if isinstance(answer, Exception):
                    each.answer.set_exception(answer)
                else:
                    each.answer.set_result(answer)
        self._running = None

    @property
    def _is_enough(self) -> bool:
        expected, most = self._expected, self._most_together
        return len(self._waiting) >= expected or self._num_waiting >= most

    async def _gather(self) -> None:
        """Wait a little for clients that were answered just now."""
        until = self._call_ended + min(self._patience * self._call_seconds, MOST_SECONDS)
        if self._is_enough or asyncio.get_running_loop().time() >= until:
            return
        self._all_here = asyncio.Event()
        missing = self._expected - len(self._waiting)
        try:
            async with asyncio.timeout_at(until):
                await self._all_here.wait()
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        except TimeoutError:
            if self._expected - len(self._waiting) > missing / 4:
                self._patience = max(self._patience / 2, LEAST_PATIENCE)
        finally:
            self._all_here = None

    def _next(self) -> list[_Waiting[Job, Answer]]:
        """The jobs of the next call, without those whose clients are gone."""
        self._waiting = [each for each in self._waiting if not each.answer.done()]
        taken, size = 0, 0
        for each in self._waiting:
            if taken and size + each.size > self._most_together:
                break
            taken, size = taken + 1, size + each.size
        batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
        self._num_waiting = sum(each.size for each in self._waiting)
        return batch
