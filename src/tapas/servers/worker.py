"""`Worker`: runs training steps whose rows and encoder are on servers.

    pull the encoder; look up the inputs; encode; draw the pool
    the servers score the pool, and return the classes that they keep with their rows
    loss and gradients; push those of rows and those of the encoder

Random draws and pushes depend only on the number of the step. So a step that is repeated,
because the worker or a server died during it, draws the same and is applied once.
"""

import threading
import time
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tapas.data.splits import split_log
from tapas.data.windows import SequenceBatch, Windows
from tapas.rng import stream
from tapas.servers.channel import ServerChannel
from tapas.servers.encoder_server import flatten, unflatten
from tapas.servers.messages import PushResult, to_array, to_tensor
from tapas.servers.peers import Peers
from tapas.servers.worker_model import worker_model
from tapas.training.build import dense_parameters, resolve_config
from tapas.training.config import TrainConfig
from tapas.training.learning_rate import learning_rates
from tapas.training.run_folder import open_run
from tapas.training.step import finite

STEPS_AT_ONCE = 2  # for each worker: one computes while the other waits for servers


class StepResult(NamedTuple):
    """The result of a step."""

    number: int
    loss: float
    rows: list[PushResult]  # one for each server
    encoder: PushResult
    sent_bytes: int  # to and from all servers
    received_bytes: int
    round_trips: int
    seconds: float


class ModelReplica:
    """A copy of the model with its own channel, for one step at a time."""

    def __init__(
        self, worker: int, config: TrainConfig, train_counts: NDArray[np.int64], servers: Peers
    ):
        self.channel = ServerChannel(servers, worker)
        self.model, self.tables = worker_model(config, train_counts, self.channel)
        self.learned = dense_parameters(self.model)

    @torch.no_grad()
    def load(self, parameters: torch.Tensor) -> None:
        for mine, given in zip(
            self.learned.values(), unflatten(parameters, self.learned), strict=True
        ):
            mine.copy_(given)
            mine.grad = torch.zeros_like(mine)


class Worker:
    """Worker `number`; `step` may be called from several threads."""

    def __init__(
        self,
        number: int,
        config: TrainConfig,
        windows: Windows,
        train_counts: NDArray[np.int64],
        servers: Peers,
        encoder: Peers,
    ):
        self.number, self.config, self.windows, self.encoder = number, config, windows, encoder
        self._replicas: SimpleQueue[ModelReplica] = SimpleQueue()
        self._reading = threading.Lock()
        for _ in range(STEPS_AT_ONCE):
            self._replicas.put(ModelReplica(number, config, train_counts, servers))

    def step(self, number: int, acknowledged_below: int) -> StepResult:
        """Run step `number`; all steps before `acknowledged_below` are done."""
        replica = self._replicas.get()
        try:
            return self._run(replica, number, acknowledged_below)
        finally:
            self._replicas.put(replica)

    def _run(self, replica: ModelReplica, number: int, acknowledged_below: int) -> StepResult:
        started = time.perf_counter()
        traffic = replica.channel.traffic
        before = replace(traffic)
        pulled = self.encoder.call(0, "pull")
        batch = self._batch(number)
        parameters, version = pulled.answer()
        replica.load(to_tensor(parameters))
        seed, clip = self.config.loop.seed, self.config.optimizer.clip
        replica.model.head.step = number
        learning_rates(self.config).set_rows(number, replica.tables)
        with replica.channel.single_push(number, acknowledged_below=acknowledged_below):
            loss = replica.model.loss(batch, generator=stream(seed, "dropout", number))
            value = finite(float(loss.detach()), number)
            loss.backward()  # type: ignore[no-untyped-call]  # pushes each table at its end
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(replica.model.encoder.parameters(), clip)
            gradient = flatten(p.grad for p in replica.learned.values())
            pushed = self.encoder.call(
                0,
                "push",
                self.number,
                number,
                acknowledged_below,
                version.num_pushes,
                to_array(gradient),
            )
        result = pushed.answer()
        return StepResult(
            number,
            value,
            replica.channel.push_results,
            result,
            traffic.sent_bytes - before.sent_bytes + parameters.nbytes,  # its gradient is as large
            traffic.received_bytes - before.received_bytes + parameters.nbytes,
            traffic.round_trips - before.round_trips,
            time.perf_counter() - started,
        )

    def _batch(self, number: int) -> SequenceBatch:
        with self._reading:  # windows cache the order of one epoch
            return self.windows.batch(number)


def start_worker(path: Path, number: int, servers: Peers, encoder: Peers) -> Worker:
    """Worker `number` of the run at `path`."""
    run = open_run(path)
    split = split_log(run.log, run.config.split)
    config, windows = resolve_config(run.config, run.log, split)
    return Worker(number, config, windows, split.train_counts, servers, encoder)
