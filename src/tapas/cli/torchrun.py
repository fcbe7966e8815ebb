"""The ranks of a job that torchrun has started, and whether it has restarted them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tapas.distributed.torchrun import (
    has_job_flag,
    join_ranks,
    num_restarts,
    set_job_flag,
    started_by_torchrun,
)
from tapas.phrases import counted
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.threads import allowed_cores, requested_threads
from tapas.training.config import TrainConfig, build_config, read_toml
from tapas.training.run_folder import CONFIG, RECORD


@contextmanager
def ranks_of_this_job(folder: Path, config: TrainConfig | None) -> Iterator[Ranks]:
    """The ranks of torchrun, or `ONE_PROCESS`; `config` defaults to that of the run."""
    if not started_by_torchrun():
        yield ONE_PROCESS
        return
    if config is None and (folder / CONFIG).exists():
        config = build_config(read_toml(folder / CONFIG))
    seconds = {} if config is None else {"timeout_seconds": config.loop.peer_seconds}
    with join_ranks(**seconds) as ranks:
        with suppress(OSError):  # not Linux
            Path("/proc/self/comm").write_text(f"tapas rank {ranks.rank}")  # for ps and top
        yield ranks


def restarts_of(folder: Path) -> int:
    """How often torchrun has restarted this job, if it had started the run in `folder`; else 0."""
    if not started_by_torchrun() or num_restarts() == 0 or not (folder / RECORD).exists():
        return 0
    return num_restarts() if has_job_flag(_job_flag(folder)) else 0


def mark_started(ranks: Ranks, folder: Path) -> None:
    """Record for `restarts_of` that this job, and no other, has started the run."""
    if ranks.is_distributed:
        set_job_flag(ranks, _job_flag(folder))


def _job_flag(folder: Path) -> str:
    return f"run {folder.resolve()}"


def default_threads() -> int:
    """OMP_NUM_THREADS, else all cores that this process may use; a rank has an equal share."""
    requested = requested_threads()
    if requested is not None:  # torchrun sets it, too
        return requested
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if started_by_torchrun() else 1
    return max(1, allowed_cores() // ranks)


def slow_threads(num_threads: int) -> str | None:
    """A warning if there are more threads than cores to run them."""
    cores = allowed_cores()
    if num_threads <= cores:
        return None
    return (
        f"Slow: {num_threads:,} threads, but this process may use {counted(cores, 'core')}. "
        "Threads that wait for a core hold up all others."
    )
