"""What is asked of the engine of workers and servers: to open a job, train for a while, close."""

from pathlib import Path
from typing import NamedTuple, Protocol

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
