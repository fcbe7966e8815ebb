"""One round of table 1, measured: every cell once, each a job of workers and servers."""

import math
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from experiments.system.config import Round
from tapas.comparison.ledger import Result
from tapas.errors import DataError
from tapas.training.config import TrainConfig


class Stretch(NamedTuple):
    """Some steps of a job, one after the other or at the same time, and what they took."""

    steps: int
    seconds: float
    bytes_sent: float  # between workers and servers, both ways
    rows_pushed: int  # gradients of rows, over all steps
    rows_collided: int  # of them, to a row that another step changed after this one had read it
    staleness: dict[int, int]  # updates that a step had missed when it pushed: how many steps
    loss: float


class Job(Protocol):
    """Servers and workers that run, for one configuration."""

    def run(self, steps: int) -> Stretch:
        """Train so many steps more; returns when all of them are done."""

    def close(self) -> None:
        """End all processes. Safe to call twice."""


class OpenJob(Protocol):
    """How a job is begun: `config` names the log, which is prepared in `cache`."""

    def __call__(
        self, config: TrainConfig, cache: Path, *, servers: int, workers: int, max_staleness: int
    ) -> Job: ...


def measure(
    round: Round, cache: Path, open_job: OpenJob, tell: Callable[[str], None] = lambda words: None
) -> Result:
    """What the ledger keeps of `round`.

    One job at a time: two would share the cores. `tell` is told what is going on.
    """
    system, log = round.system, round.system.make_log(cache)
    rows = []
    for cell in round.cells:
        tell(f"round {round.number + 1}: {cell}")
        job = open_job(
            system.config(cell, log, round.number),
            cache,
            servers=system.servers,
            workers=system.workers,
            max_staleness=system.max_staleness,
        )
        try:
            before, found = job.run(system.warm_up), job.run(system.steps)
        finally:
            job.close()
        for stretch, steps in ((before, system.warm_up), (found, system.steps)):
            _check(stretch, steps, str(cell))
        rows.append({"cell": cell[:3], "warm_up": _plain(before), "measured": _plain(found)})
    return {
        "key": round.key(),
        "run": asdict(round),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cells": rows,
    }


def _check(stretch: Stretch, steps: int, cell: str) -> None:
    """A job that did less, or no longer trains, has no pace worth keeping."""
    if stretch.steps != steps:
        raise DataError(f"{cell}: {steps} steps were asked for, {stretch.steps} were done.")
    if not math.isfinite(stretch.loss):
        raise DataError(
            f"{cell}: the loss became {stretch.loss} within {steps} steps. Lower max_staleness."
        )


def _plain(stretch: Stretch) -> dict[str, Any]:
    """For JSON, whose names are text."""
    found = stretch._asdict()
    found["staleness"] = {str(missed): n for missed, n in sorted(stretch.staleness.items())}
    return found
