"""A model whose rows are on servers, as workers and the driver have it."""

import numpy as np
import torch
from numpy.typing import NDArray

from tapas.data.splits import split_log
from tapas.servers.channel import ServerChannel
from tapas.servers.peers import InProcess
from tapas.servers.served_table import ServedTable
from tapas.shapes import check_device
from tapas.tables import ClassTable
from tapas.tables.shard import TableSpec
from tapas.training.build import build_model
from tapas.training.config import TrainConfig
from tapas.training.model import SequenceModel
from tapas.training.run_folder import RunFolder


def worker_model(
    config: TrainConfig,
    train_counts: NDArray[np.int64],
    channel: ServerChannel,
    device: torch.device | None = None,
) -> tuple[SequenceModel, list[ServedTable]]:
    """A model whose rows are on servers, and its tables; by default on the run's device."""
    tables: list[ServedTable] = []
    device = device or check_device("loop.device", config.loop.device)

    def make(name: str, spec: TableSpec) -> ClassTable:
        table = ServedTable(channel, name, spec, device=device)
        table.rows_in_state = False  # servers save them
        tables.append(table)
        return table

    return build_model(config, train_counts, make=make).to(device), tables


def unconnected_model(run: RunFolder) -> SequenceModel:
    """The same on the CPU, without servers: for the initial parameters of the encoder."""
    channel = ServerChannel(InProcess("server", [None] * run.config.service.servers))
    train_counts = split_log(run.log, run.config.split).train_counts
    return worker_model(run.config, train_counts, channel, torch.device("cpu"))[0]
