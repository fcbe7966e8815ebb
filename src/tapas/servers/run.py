"""A run with workers and servers, from its configuration to its end; see `tapas.training.run`."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from tapas.checkpoints.folder import Checkpoint, CheckpointFolder
from tapas.data.splits import Split, split_log
from tapas.errors import PeerError
from tapas.phrases import counted
from tapas.servers.job import Job, StartPeers
from tapas.servers.ray_session import import_ray
from tapas.shapes import check_device
from tapas.tables.ranks import ONE_PROCESS
from tapas.training.build import resolve_config, table_specs, workload_of
from tapas.training.config import ServiceConfig, TrainConfig
from tapas.training.journal import Journal
from tapas.training.memory_plan import check_machine_fits
from tapas.training.model import SequenceModel
from tapas.training.run import (
    OnProgress,
    ShouldStop,
    Status,
    describe_resume,
    read_log,
    reopen,
    run_to_end,
    warn_of_unreadable,
    write_choices,
)
from tapas.training.run_folder import RunFolder, create_run, exclusive, write_config
from tapas.training.trainer import Trainer, TrainResult
from tapas.training.validation import describe_training, validator


def train(
    config: TrainConfig,
    out: Path,
    *,
    cache: Path,
    given: Collection[str] | None = None,
    start_peers: StartPeers | None = None,
    status: Status = lambda words: None,
    on_progress: OnProgress = lambda tick: None,
    should_stop: ShouldStop = lambda: False,
) -> TrainResult:
    """As `tapas.training.run.train`, with workers and servers, which must see the same folders.

    `start_peers` starts their processes; by default Ray does, on this machine.
    """
    _check_can_start(config, start_peers)
    config, log, split, choices = read_log(
        config, out, cache=cache, given=given, status=status, ranks=ONE_PROCESS
    )
    config = resolve_config(config, log, split)[0]
    _check_shards(config, log.num_items)
    if start_peers is None:  # all on this machine
        service = config.service
        check_machine_fits(
            workload_of(config, split.train_counts), service.servers, service.workers
        )
    run = create_run(out, config, log, fill=lambda folder: write_choices(folder, choices))
    with exclusive(out):
        status(_describe_start(config, split))
        with _trainer(run, split, None, start_peers) as trainer:
            return run_to_end(trainer, on_progress, should_stop, status)


def resume(
    folder: Path,
    *,
    step: int | None = None,
    service: ServiceConfig | None = None,
    start_peers: StartPeers | None = None,
    status: Status = lambda words: None,
    on_progress: OnProgress = lambda tick: None,
    should_stop: ShouldStop = lambda: False,
) -> TrainResult:
    """Resume from the newest checkpoint, or from that of `step`.

    `service` replaces the run's numbers of workers and servers.
    """
    run = reopen(folder, service)
    _check_can_start(run.config, start_peers)
    _check_shards(run.config, run.log.num_items)
    torch.set_num_threads(run.num_threads)  # another number would sum in another order
    split = split_log(run.log, run.config.split)
    with exclusive(folder):
        checkpoint = None
        if run.checkpoints.steps() or step is not None:
            servers = run.config.service.servers  # they check the files of rows
            checkpoint = run.checkpoints.load_dense(step, reader=servers, num_readers=servers + 1)
        if service is not None:
            write_config(run)  # all processes read it
        warn_of_unreadable(run, status)
        status(describe_resume(checkpoint, run.checkpoints.steps()))
        status(_describe_start(run.config, split))
        with _trainer(run, split, checkpoint, start_peers) as trainer:
            return run_to_end(trainer, on_progress, should_stop, status)


def _describe_start(config: TrainConfig, split: Split) -> str:
    service = config.service
    return (
        f"{describe_training(config, split)}, {counted(service.workers, 'worker')}, "
        f"{counted(service.servers, 'server')}, staleness at most {service.max_staleness}."
    )


@contextmanager
def _trainer(
    run: RunFolder, split: Split, checkpoint: Checkpoint | None, start_peers: StartPeers | None
) -> Iterator[Trainer]:
    """The trainer of `run` at `checkpoint`, with processes started by `start_peers`."""
    run = replace(run, path=run.path.resolve())  # processes may have other working directories
    loop, restore = run.config.loop, checkpoint.step if checkpoint else None
    with ExitStack() as closing:
        start_peers = start_peers or closing.enter_context(on_ray())
        journal = closing.enter_context(Journal(run.path, resume_at=restore or 0))
        job = Job(run, split, start_peers, restore=restore)
        closing.callback(job.close)
        validate = validator(run.config, run.log, split)

        def refresh_and_validate(model: SequenceModel) -> dict[str, float]:
            job.refresh()
            return validate(model)

        # a restarting server may still read the checkpoint before the newest
        kept = CheckpointFolder(run.checkpoints.folder, keep=max(2, loop.keep))
        trainer = Trainer(job.model, job, refresh_and_validate, kept, journal, loop=loop)
        if checkpoint is not None:
            trainer.resume(checkpoint)
        try:
            yield trainer
        except PeerError as error:
            saved = run.checkpoints.steps()
            newest = f"The last checkpoint is step {saved[-1]:,}" if saved else "Nothing was saved"
            raise PeerError(f"{error} {newest}. Continue with --resume.", error.ranks) from error


def _check_can_start(config: TrainConfig, start_peers: StartPeers | None) -> None:
    """Raise UsageError early if device or Ray are missing."""
    check_device("loop.device", config.loop.device)
    if start_peers is None:
        import_ray()


def _check_shards(config: TrainConfig, num_classes: int) -> None:
    """Raise UsageError if there are more servers than classes."""
    for spec in table_specs(config, num_classes).values():
        spec.layout()


@contextmanager
def on_ray(address: str | None = None) -> Iterator[StartPeers]:
    """Starts peers with Ray on this machine, or on the cluster at `address`."""
    from tapas.servers.ray_peers import RayPeers
    from tapas.servers.ray_session import ray_session

    with ray_session(address):
        yield partial(RayPeers.start, wait=False)
