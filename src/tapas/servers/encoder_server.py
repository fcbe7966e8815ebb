"""The server of the encoder: its parameters, and the optimizer that moves them."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tapas.checkpoints.model import load_optimizer_state, optimizer_record, optimizer_state
from tapas.servers.messages import Floats, Ledger, Receipt, Stamp, array_of, incarnation, tensor_of
from tapas.servers.row_server import Turns
from tapas.servers.training_server import restore_point
from tapas.servers.worker_model import client_of
from tapas.training.build import build_optimizer, learned_by
from tapas.training.config import OptimizerConfig
from tapas.training.run_folder import open_run


class EncoderServer:
    """Parameters by name, which travel as one flat array, in this order.

    A push is tagged as one of rows and is applied once. Threads may call; they take turns.
    """

    def __init__(
        self, parameters: Mapping[str, Floats], config: OptimizerConfig, *, settled: int = 0
    ):
        self.parameters = {k: nn.Parameter(tensor_of(v)) for k, v in parameters.items()}
        self.optimizer = build_optimizer(config, self.parameters)
        self.ledger, self.restored = Ledger(settled), settled
        self.incarnation, self.version = incarnation(), 0
        self._turns = Turns()

    def pull(self) -> tuple[Floats, Stamp]:
        """All parameters, (P,)."""
        with self._turns.take("pull"):
            return array_of(flat(self.parameters.values())), self._stamp()

    def push(
        self, worker: int, sequence: int, settled: int, seen: int, gradient: Floats
    ) -> Receipt:
        """One step of the optimizer by `gradient` (P,), unless this push was applied before."""
        with self._turns.take("push"):
            self.ledger.settle(worker, settled)
            if (earlier := self.ledger.find(worker, sequence, self._stamp())) is not None:
                return earlier
            for parameter, grad in zip(
                self.parameters.values(), cut(tensor_of(gradient), self.parameters), strict=True
            ):
                parameter.grad = grad
            self.optimizer.step()
            staleness = max(0, self.version - seen)
            self.version += 1
            receipt = Receipt(True, staleness, 0, 0, self._stamp())
            return self.ledger.enter(worker, sequence, receipt)

    def state(self) -> tuple[dict[str, Floats], dict[str, Any], list[Any], Stamp, int]:
        """Parameters by name, the optimizer's tensors and record as in checkpoints, who answers.

        The last is the step of the checkpoint that this process began from.
        """
        with self._turns.take("state"):
            learned = {name: array_of(p).copy() for name, p in self.parameters.items()}
            moments = {
                name: array_of(value).copy()
                for name, value in optimizer_state(self.optimizer).items()
            }
            record = optimizer_record(self.optimizer)
            return learned, moments, record, self._stamp(), self.restored

    def status(self) -> dict[str, Any]:
        return self._turns.counts() | {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "incarnation": self.incarnation,
            "restored": self.restored,
            "version": self.version,
            "repeated": self.ledger.num_repeated,
        }

    def _stamp(self) -> Stamp:
        return Stamp(self.incarnation, self.version)


def flat(tensors: Any) -> torch.Tensor:
    """All of them in a row, (P,)."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def cut(whole: torch.Tensor, like: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """`whole` (P,) in the shapes of `like`."""
    parts = torch.split(whole, [tensor.numel() for tensor in like.values()])
    return [part.view_as(tensor) for part, tensor in zip(parts, like.values(), strict=True)]


def start_encoder(path: Path) -> EncoderServer:
    """The encoder's server of the run at `path`: as it began, or as its checkpoint has it."""
    run = open_run(path)
    parameters = {name: array_of(p) for name, p in learned_by(client_of(run)).items()}
    step = restore_point(path)
    if step is None:
        return EncoderServer(parameters, run.config.optimizer)
    servers = run.config.service.servers  # who check the rest of the files
    found = run.checkpoints.load_dense(step, part=servers, parts=servers + 1)
    stored = {name: array_of(found.tensors[f"model.{name}"]) for name in parameters}
    server = EncoderServer(stored, run.config.optimizer, settled=step)
    load_optimizer_state(server.optimizer, found)
    return server
