"""One round of table 1, measured: every cell once, each a job of workers and servers."""

import math
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.system.config import Round
from tapas.comparison.ledger import Result
from tapas.data.prepare import prepare_log
from tapas.data.splits import split_log
from tapas.errors import DataError
from tapas.servers.accounting import StepStatistics
from tapas.servers.job import Job
from tapas.servers.run import on_ray
from tapas.training.build import resolve_config
from tapas.training.config import TrainConfig
from tapas.training.run_folder import create_run


class Segment(NamedTuple):
    """Some steps of a job, one after the other or at the same time, and what they took."""

    steps: int
    seconds: float
    bytes_sent: float  # between workers and servers, both ways
    rows_pushed: int  # gradients of rows, over all steps
    rows_collided: int  # of them, to a row that another step changed after this one had read it
    staleness: dict[int, int]  # updates that a step had missed when it pushed: how many steps
    loss: float


class RayJob:
    """A run of servers and workers as in `tapas train --servers`, in a temporary folder.

    There are no evaluations and checkpoints. The folder is removed when the job is closed.
    """

    def __init__(self, config: TrainConfig, cache: Path):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tapas-")))
            log = prepare_log(config.log, cache)
            split = split_log(log, config.split)
            run = create_run(folder.resolve() / "run", resolve_config(config, log, split)[0], log)
            self._job = Job(run, split, stack.enter_context(on_ray()), restore=None)
            stack.callback(self._job.close)
            self._ending, self._next = stack.pop_all(), 0

    def run(self, steps: int) -> Segment:
        """Train for `steps` more steps; returns when all of them are done."""
        statistics = self._job.statistics = StepStatistics()
        until = self._next + steps
        for number in range(self._next, until):
            self._job.run_step(number, until)
        seconds, self._next = statistics.seconds, until
        return Segment(
            steps=statistics.steps,
            seconds=seconds,
            bytes_sent=statistics.sent_bytes + statistics.received_bytes,
            rows_pushed=statistics.rows,
            rows_collided=statistics.collided,
            staleness=dict(statistics.staleness),
            loss=statistics.loss / statistics.steps,
        )

    def close(self) -> None:
        """End all processes. Safe to call twice."""
        self._ending.close()


def measure(round: Round, cache: Path, status: Callable[[str], None] = lambda line: None) -> Result:
    """What the ledger keeps of `round`.

    One job at a time, because two would share the cores. `status` gets a line for each cell.
    """
    system, log = round.system, round.system.make_log(cache)
    rows = []
    for cell in round.cells:
        status(f"round {round.number + 1}: {cell}")
        job = RayJob(system.config(cell, log, round.number), cache)
        try:
            before, found = job.run(system.warm_up), job.run(system.steps)
        finally:
            job.close()
        for segment, steps in ((before, system.warm_up), (found, system.steps)):
            _check(segment, steps, str(cell))
        rows.append({"cell": cell[:3], "warm_up": _plain(before), "measured": _plain(found)})
    return {
        "key": round.key(),
        "run": asdict(round),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cells": rows,
    }


def _check(segment: Segment, steps: int, cell: str) -> None:
    """Raise if steps are missing or the loss is not finite."""
    if segment.steps != steps:
        raise DataError(f"{cell}: expected {steps} steps, got {segment.steps}.")
    if not math.isfinite(segment.loss):
        raise DataError(
            f"{cell}: the loss became {segment.loss} within {steps} steps. Lower max_staleness."
        )


def _plain(segment: Segment) -> dict[str, Any]:
    """For JSON: keys become strings."""
    found = segment._asdict()
    found["staleness"] = {str(missed): n for missed, n in sorted(segment.staleness.items())}
    return found
