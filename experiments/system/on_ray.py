"""Jobs as `tapas train --servers` runs them, without evaluations and checkpoints."""

import dataclasses
import tempfile
from contextlib import ExitStack
from pathlib import Path

from experiments.system.measure import Stretch
from tapas.data.prepare import prepare_log
from tapas.data.splits import split_log
from tapas.servers.accounting import Account
from tapas.servers.job import Job
from tapas.servers.run import on_ray
from tapas.training.build import prepare
from tapas.training.config import ServiceConfig, TrainConfig
from tapas.training.run_folder import create_run


class RayJob:
    """A `Job` of a run in a folder that goes when it is closed."""

    def __init__(self, config: TrainConfig, cache: Path):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tapas-")))
            log = prepare_log(config.log, cache)
            split = split_log(log, config.split)
            run = create_run(folder.resolve() / "run", prepare(config, log, split)[0], log)
            self._job = Job(run, split, stack.enter_context(on_ray()), restore=None)
            stack.callback(self._job.close)
            self._ending, self._next = stack.pop_all(), 0

    def run(self, steps: int) -> Stretch:
        account = self._job.account = Account()
        until = self._next + steps
        for number in range(self._next, until):
            self._job.take(number, until)
        seconds, self._next = account.seconds, until
        return Stretch(
            steps=account.steps,
            seconds=seconds,
            bytes_sent=account.sent_bytes + account.received_bytes,
            rows_pushed=account.rows,
            rows_collided=account.collided,
            staleness=dict(account.staleness),
            loss=account.loss / account.steps,
        )

    def close(self) -> None:
        self._ending.close()


def open_job(
    config: TrainConfig, cache: Path, *, servers: int, workers: int, max_staleness: int
) -> RayJob:
    service = ServiceConfig(servers=servers, workers=workers, max_staleness=max_staleness)
    return RayJob(dataclasses.replace(config, service=service), cache)
