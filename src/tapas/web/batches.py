"""Requests that arrive while others are computed wait, and are then computed together."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, TypeVar

Job = TypeVar("Job")
Answer = TypeVar("Answer")


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

    async def submit(self, job: Job, size: int = 1) -> Answer:
        """The answer to `job`; raises what `work` found wrong with it."""
        if self._num_waiting and self._num_waiting + size > self._most_waiting:
            raise BusyError
        waiting = _Waiting(job, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._num_waiting += size
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        answer: Answer = await waiting.answer
        return answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next():
            size = sum(each.size for each in batch)
            self._on_batch(size)
            jobs = [each.job for each in batch]
            try:
                found = await loop.run_in_executor(self._executor, self._work, jobs)
            except Exception as error:
                found = [error] * len(batch)
            for each, answer in zip(batch, found, strict=True):
                if each.answer.done():  # the client is gone
                    continue
                if isinstance(answer, Exception):
                    each.answer.set_exception(answer)
                else:
                    each.answer.set_result(answer)
        self._running = None

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
