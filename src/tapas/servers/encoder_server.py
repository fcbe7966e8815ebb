"""`EncoderServer`: the parameters of the encoder and their optimizer."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tapas.checkpoints.model import load_optimizer_state, optimizer_record, optimizer_state
from tapas.servers.messages import (
    AppliedPushes,
    Floats,
    PushResult,
    Version,
    incarnation,
    to_array,
    to_tensor,
)
from tapas.servers.row_server import CountedLock
from tapas.servers.training_server import restore_point
from tapas.servers.worker_model import unconnected_model
from tapas.training.build import build_optimizer, dense_parameters
from tapas.training.learning_rate import LearningRates, learning_rates
from tapas.training.run_folder import open_run


class EncoderServer:
    """Keeps `parameters` by name, and sends them as one flat array in this order.

    As on row servers, a repeated push is applied once. Methods may be called from threads.
    """

    def __init__(
        self, parameters: Mapping[str, Floats], rates: LearningRates, *, applied_below: int = 0
    ):
        self.parameters = {k: nn.Parameter(to_tensor(v)) for k, v in parameters.items()}
        self.rates, self.optimizer = rates, build_optimizer(rates.config, self.parameters)
        self.applied_pushes, self.restored = AppliedPushes(applied_below), applied_below
        self.incarnation, self.num_pushes = incarnation(), 0
        self._lock = CountedLock()

    def pull(self) -> tuple[Floats, Version]:
        """All parameters, (P,)."""
        with self._lock.hold("pull"):
            return to_array(flatten(self.parameters.values())), self._current_version()

    def push(
        self, worker: int, sequence: int, acknowledged_below: int, seen: int, gradient: Floats
    ) -> PushResult:
        """Step the optimizer with `gradient` (P,), unless this push was applied before.

        `sequence` is the number of the training step.
        """
        with self._lock.hold("push"):
            self.applied_pushes.forget(worker, acknowledged_below)
            if (
                earlier := self.applied_pushes.find(worker, sequence, self._current_version())
            ) is not None:
                return earlier
            for parameter, grad in zip(
                self.parameters.values(),
                unflatten(to_tensor(gradient), self.parameters),
                strict=True,
            ):
                parameter.grad = grad
            self.rates.set_encoder(sequence, self.optimizer)
            self.optimizer.step()
            staleness = max(0, self.num_pushes - seen)
            self.num_pushes += 1
            result = PushResult(True, staleness, 0, 0, self._current_version())
            return self.applied_pushes.add(worker, sequence, result)

    def state(self) -> tuple[dict[str, Floats], dict[str, Any], list[Any], Version, int]:
        """For a checkpoint: parameters, the optimizer's tensors and record, and the version.

        The last item is the step of the checkpoint that this process started from.
        """
        with self._lock.hold("state"):
            learned = {name: to_array(p).copy() for name, p in self.parameters.items()}
            moments = {
                name: to_array(value).copy()
                for name, value in optimizer_state(self.optimizer).items()
            }
            record = optimizer_record(self.optimizer)
            return learned, moments, record, self._current_version(), self.restored

    def status(self) -> dict[str, Any]:
        return self._lock.counts() | {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "incarnation": self.incarnation,
            "restored": self.restored,
            "num_pushes": self.num_pushes,
            "repeated": self.applied_pushes.num_repeated,
        }

    def _current_version(self) -> Version:
        return Version(self.incarnation, self.num_pushes)


def flatten(tensors: Any) -> torch.Tensor:
    """All numbers of `tensors` in one tensor, (P,)."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(flat: torch.Tensor, like: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """`flat` (P,) in the shapes of `like`."""
    parts = torch.split(flat, [tensor.numel() for tensor in like.values()])
    return [part.view_as(tensor) for part, tensor in zip(parts, like.values(), strict=True)]


def start_encoder(path: Path) -> EncoderServer:
    """The encoder server of the run at `path`, at its start or at its restore point."""
    run = open_run(path)
    parameters = {name: to_array(p) for name, p in dense_parameters(unconnected_model(run)).items()}
    step = restore_point(path)
    if step is None:
        return EncoderServer(parameters, learning_rates(run.config))
    servers = run.config.service.servers  # they check the other files
    found = run.checkpoints.load_dense(step, reader=servers, num_readers=servers + 1)
    stored = {name: to_array(found.tensors[f"model.{name}"]) for name in parameters}
    server = EncoderServer(stored, learning_rates(run.config), applied_below=step)
    load_optimizer_state(server.optimizer, found)
    return server
