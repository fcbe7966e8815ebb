"""A job: servers, the encoder's server and workers of one run, and the steps they take.

Step k is begun when all steps before k - S are done, S being `max_staleness`: it misses the
updates of at most S steps before it. As many after it may be faster, so that up to 2 S updates
can come between what a step reads and what it pushes. With S = 0 steps are taken one by one, and
the run is that of one process with as many shards. The worker that has least to do takes a step.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tapas.checkpoints.folder import Checkpoint, CheckpointFolder
from tapas.checkpoints.model import contents_of
from tapas.data.splits import Split
from tapas.errors import TapasError
from tapas.servers.accounting import ENCODER, LostUpdates, SavedBy, ServerLoad, StepStatistics
from tapas.servers.channel import ServerChannel
from tapas.servers.encoder_server import start_encoder, unflatten
from tapas.servers.messages import to_tensor
from tapas.servers.peers import Call, Peers, call_all
from tapas.servers.training_server import set_restore_point, start_server
from tapas.servers.worker import STEPS_AT_ONCE, StepResult, start_worker
from tapas.servers.worker_model import worker_model
from tapas.training.build import dense_parameters
from tapas.training.journal import Value
from tapas.training.run_folder import RunFolder

POLL_SECONDS = 1.0  # between two looks at what is under way
MAX_THREADS = 64
DRIVER = -1  # reads, and pushes nothing


class StartPeers(Protocol):
    """Starts a process for each of `factories`, and again when it dies; see `Peers`.

    It need not wait for them: `Peers.ready` does.
    """

    def __call__(
        self,
        kind: str,
        factories: Sequence[Callable[[], Any]],
        *,
        threads: int,
        seconds: float,
        start_seconds: float,
        work_seconds: float,
    ) -> Peers: ...


class Job:
    """The processes of `run`, started by `start_peers` from `restore`, a step that was saved.

    `model` is this process's view of what they train: its rows are on the servers, its encoder
    is as `refresh` left it.
    """

    def __init__(
        self, run: RunFolder, split: Split, start_peers: StartPeers, *, restore: int | None
    ):
        service, seconds = run.config.service, run.config.loop.peer_seconds
        self.run, self.max_staleness = run, service.max_staleness or 0
        self._next = restore or 0  # the step to be begun next
        self._under_way: dict[int, Call] = {}
        self._done: dict[int, StepResult] = {}
        self._lost_updates, self.statistics = LostUpdates(), StepStatistics()
        self._restarts = [0] * service.workers
        self._lost: dict[str, int] = {}
        set_restore_point(run.path, restore)
        patience = {
            "seconds": seconds, "work_seconds": seconds, "start_seconds": service.start_seconds,
        }  # fmt: skip
        # every worker may ask twice at a time, and the driver once
        threads = min(MAX_THREADS, STEPS_AT_ONCE * service.workers + 1)
        with ExitStack() as stack:
            shards = [partial(start_server, run.path, j) for j in range(service.servers)]
            self.servers = start_peers("server", shards, threads=threads, **patience)
            stack.callback(self.servers.close)
            channel = ServerChannel(self.servers, DRIVER)
            self.model, _ = worker_model(run.config, split.train_counts, channel)
            encoder = [partial(start_encoder, run.path)]
            self.encoder = start_peers("encoder server", encoder, threads=threads, **patience)
            stack.callback(self.encoder.close)
            trainers = [
                partial(start_worker, run.path, number, self.servers, self.encoder)
                for number in range(service.workers)
            ]
            # a worker that waits for a server, even for one that starts, must be the one to say so
            patience["work_seconds"] += service.start_seconds + seconds
            self.workers = start_peers("worker", trainers, threads=STEPS_AT_ONCE, **patience)
            stack.callback(self.workers.close)
            for peers in (self.servers, self.encoder, self.workers):  # they start side by side
                peers.ready()
            self._lost_updates.begin(self._statuses())
            self._load = ServerLoad()
            self._ending = stack.pop_all()

    def run_step(self, number: int, until: int) -> float:
        while number not in self._done:
            self._begin(number, until)
            for call in self.workers.any_done(list(self._under_way.values()), POLL_SECONDS):
                self._finish(call)
        return self._done.pop(number).loss

    def _begin(self, number: int, until: int) -> None:
        """All steps that may be under way when those before `number` are done."""
        size = self.workers.size
        while (step := self._next) < min(until, number + self.max_staleness + 1):
            self.statistics.begin()
            busy = Counter(call.number for call in self._under_way.values())
            worker = min(range(size), key=lambda w: (busy[w], (w - step) % size))
            self._under_way[step] = self.workers.call(worker, "step", step, number)
            self._next += 1

    def _finish(self, call: Call) -> None:
        taken: StepResult = call.answer()
        del self._under_way[taken.number]
        self._done[taken.number] = taken
        self._lost_updates.note(taken)
        self.statistics.add(taken)

    def drain(self) -> list[float]:
        for call in list(self._under_way.values()):
            self._finish(call)
        done, self._done = self._done, {}
        return [done[number].loss for number in sorted(done)]

    def refresh(self) -> None:
        """The encoder of `model` as it is on its server."""
        learned = dense_parameters(self.model)
        whole, _ = self.encoder.call(0, "pull").answer()
        for mine, now in zip(learned.values(), unflatten(to_tensor(whole), learned), strict=True):
            mine.data.copy_(now)

    def save(
        self, checkpoints: CheckpointFolder, step: int, state: dict[str, Any], *, best: bool
    ) -> None:
        self.model.head.step = step
        # in one answer: of two, the second might be that of a process that began anew
        learned, moments, record, version, restored = self.encoder.call(0, "state").answer()
        for name, mine in dense_parameters(self.model).items():
            mine.data.copy_(to_tensor(learned[name]))
        saved = {ENCODER: SavedBy(version.incarnation, restored)}

        def have_written(folder: Path) -> list[Any]:
            calls = [self.servers.call(j, "save", str(folder)) for j in range(self.servers.size)]
            answers = [_outcome(call) for call in calls]  # none writes any more
            for j, answer in enumerate(answers):
                if isinstance(answer, BaseException):
                    raise answer
                saved[f"server {j}"] = SavedBy(answer[1].incarnation, answer[2])
            return [part for part, *_ in answers]

        held = contents_of(self.model)
        tensors = {**held.tensors, **{name: to_tensor(value) for name, value in moments.items()}}
        contents = replace(held, tensors=tensors, optimizers=record)
        checkpoints.save(step, contents, state, best=best, servers=have_written)
        set_restore_point(self.run.path, step)
        self._lost = self._lost_updates.close(step, saved)

    def resume(self, checkpoint: Checkpoint) -> None:
        """The processes have begun there."""

    def events(self) -> Iterator[tuple[str, dict[str, Value]]]:
        # first what no later question to a server may keep from being told
        for name, count in self._lost.items():
            yield "restart", {"process": name, "rolled_back_updates": count}
        for number, times in enumerate(self.workers.restarts()):
            if times > self._restarts[number]:
                yield "restart", {"process": f"worker {number}", "rolled_back_updates": 0}
                self._restarts[number] = times
        statistics, self.statistics, self._lost = self.statistics, StepStatistics(), {}
        yield "service", statistics.numbers() | self._load.numbers(self._statuses())

    def _statuses(self) -> dict[str, dict[str, Any]]:
        here = {f"server {j}": s for j, s in enumerate(call_all(self.servers, "status"))}
        return here | {ENCODER: self.encoder.call(0, "status").answer()}

    def close(self) -> None:
        """End all processes. Safe to call twice."""
        self._ending.close()


def _outcome(call: Call) -> Any:
    try:
        return call.answer()
    except (TapasError, OSError) as error:
        return error
