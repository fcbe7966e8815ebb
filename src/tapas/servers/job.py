"""`Job`: the row servers, the encoder server and the workers of a run, and their steps.

With S = `max_staleness`, step k starts when all steps before k - S are done, so that it misses
the updates of at most S earlier steps. Up to S later steps may overtake it, so that up to 2 S
updates can lie between its reads and its push. With S = 0 steps run one after the other, and the
result is that of one process with as many shards. Each step goes to the least busy worker.
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
from tapas.training.build import TrainingData, build_mixture, dense_parameters
from tapas.training.journal import Value
from tapas.training.run_folder import RunFolder

POLL_SECONDS = 1.0  # longest wait for a step before the calls are looked at again
MAX_THREADS = 64
DRIVER = -1  # the worker number of this process, which reads but never pushes


class StartPeers(Protocol):
    """Starts a process for each of `factories`, and restarts it when it dies.

    It may return before they are ready; `Peers.ready` waits for them.
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
    """The processes of `run`, started by `start_peers` at the checkpoint of step `restore`.

    `model` is the trained model as seen from this process: its rows are on the servers, and
    `refresh` copies its encoder from the encoder server.
    """

    def __init__(
        self, run: RunFolder, split: Split, start_peers: StartPeers, *, restore: int | None
    ):
        service, seconds = run.config.service, run.config.loop.peer_seconds
        self.run, self.max_staleness = run, service.max_staleness or 0
        self._next = restore or 0  # the next step to start
        self._in_flight: dict[int, Call] = {}
        self._done: dict[int, StepResult] = {}
        self._lost_updates, self.statistics = LostUpdates(), StepStatistics()
        self._restarts = [0] * service.workers
        self._lost: dict[str, int] = {}
        self._restarted: list[str] = []  # servers, since the last call of `restarted`
        set_restore_point(run.path, restore)
        patience = {
            "seconds": seconds, "work_seconds": seconds, "start_seconds": service.start_seconds,
        }  # fmt: skip
        # every worker may make two calls at a time, and the driver one
        threads = min(MAX_THREADS, STEPS_AT_ONCE * service.workers + 1)
        with ExitStack() as stack:
            shards = [partial(start_server, run.path, j) for j in range(service.servers)]
            self.servers = start_peers("server", shards, threads=threads, **patience)
            stack.callback(self.servers.close)
            channel = ServerChannel(self.servers, DRIVER)
            self.model, _ = worker_model(run.config, split.train_counts, channel)
            self.model.mixture = build_mixture(
                run.config.model, TrainingData(None, run.log, split.train_end)
            )
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
            for peers in (self.servers, self.encoder, self.workers):  # all start concurrently
                peers.ready()
            self._lost_updates.begin(self._statuses())
            self._load = ServerLoad()
            self._closing = stack.pop_all()

    def run_step(self, number: int, until: int) -> float:
        while number not in self._done:
            self._begin(number, until)
            for call in self.workers.any_done(list(self._in_flight.values()), POLL_SECONDS):
                self._finish(call)
        return self._done.pop(number).loss

    def _begin(self, number: int, until: int) -> None:
        """Start all steps that may be in flight when those before `number` are done."""
        size = self.workers.size
        while (step := self._next) < min(until, number + self.max_staleness + 1):
            self.statistics.begin()
            busy = Counter(call.number for call in self._in_flight.values())
            worker = min(range(size), key=lambda w: (busy[w], (w - step) % size))
            self._in_flight[step] = self.workers.call(worker, "step", step, number)
            self._next += 1

    def _finish(self, call: Call) -> None:
        result: StepResult = call.answer()
        del self._in_flight[result.number]
        self._done[result.number] = result
        self._restarted += self._lost_updates.note(result)
        self.statistics.add(result)

    def drain(self) -> list[float]:
        for call in list(self._in_flight.values()):
            self._finish(call)
        done, self._done = self._done, {}
        return [done[number].loss for number in sorted(done)]

    def refresh(self) -> None:
        """Copy the encoder's parameters from its server into `model`."""
        learned = dense_parameters(self.model)
        flat, _ = self.encoder.call(0, "pull").answer()
        for mine, now in zip(learned.values(), unflatten(to_tensor(flat), learned), strict=True):
            mine.data.copy_(now)

    def save(
        self, checkpoints: CheckpointFolder, step: int, state: dict[str, Any], *, best: bool
    ) -> None:
        self.model.head.step = step
        # in one call: between two calls the process might be restarted
        learned, moments, record, version, restored = self.encoder.call(0, "state").answer()
        for name, mine in dense_parameters(self.model).items():
            mine.data.copy_(to_tensor(learned[name]))
        saved = {ENCODER: SavedBy(version.incarnation, restored)}

        def write_on_servers(folder: Path) -> list[Any]:
            calls = [self.servers.call(j, "save", str(folder)) for j in range(self.servers.size)]
            answers = [_outcome(call) for call in calls]  # after an error, no server still writes
            for j, answer in enumerate(answers):
                if isinstance(answer, BaseException):
                    raise answer
                saved[f"server {j}"] = SavedBy(answer[1].incarnation, answer[2])
            return [part for part, *_ in answers]

        held = contents_of(self.model)
        tensors = {**held.tensors, **{name: to_tensor(value) for name, value in moments.items()}}
        contents = replace(held, tensors=tensors, optimizers=record)
        checkpoints.save(step, contents, state, best=best, servers=write_on_servers)
        set_restore_point(self.run.path, step)
        self._lost = self._lost_updates.close(step, saved)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Load the mixture, which is in this process; the others have started at the checkpoint."""
        if self.model.mixture is not None:
            prefix = "model.mixture."
            saved = ((k, v) for k, v in checkpoint.tensors.items() if k.startswith(prefix))
            self.model.mixture.load_state_dict({k.removeprefix(prefix): v for k, v in saved})

    def restarted(self) -> list[str]:
        found, self._restarted = self._restarted, []
        return found

    def events(self) -> Iterator[tuple[str, dict[str, Value]]]:
        self._restarted = []  # they are in `_lost`
        # restarts first: the call of `status` below may fail
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
        """Stop all processes. Safe to call twice."""
        self._closing.close()


def _outcome(call: Call) -> Any:
    try:
        return call.answer()
    except (TapasError, OSError) as error:
        return error
