"""`join_ranks`: joining the ranks of a job that torchrun started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from tapas.distributed.collectives import GroupRanks, ranks_in
from tapas.errors import PeerError, UsageError
from tapas.tables.ranks import Ranks

TIMEOUT_SECONDS = 120.0
_joined: list[int] = []  # a process may join several times, each time with another key prefix


def started_by_torchrun() -> bool:
    """Whether this process is a rank of torchrun, or of another launcher that sets RANK."""
    if "RANK" not in os.environ or not os.environ.get("WORLD_SIZE", "").isdigit():
        return False
    return "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ["WORLD_SIZE"]) > 1


def num_restarts() -> int:
    """How often torchrun has restarted this job after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def set_job_flag(ranks: Ranks, flag: str) -> None:
    """Set `flag` for later attempts of this job, if torchrun restarts it."""
    store = _job_store()
    if store is not None and ranks.rank == 0:
        store.set(f"tapas/flag/{flag}", "1")


def has_job_flag(flag: str) -> bool:
    """Whether an earlier attempt of this job has set `flag`."""
    store = _job_store()
    return store is not None and bool(store.check([f"tapas/flag/{flag}"]))


def _job_store() -> Any:
    """torchrun's store, which outlives the ranks; None without torchrun."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=False, timeout=timedelta(seconds=30)
    )


@contextmanager
def join_ranks(*, timeout_seconds: float = TIMEOUT_SECONDS) -> Iterator[GroupRanks]:
    """Initialize torch.distributed for the length of the context; returns the ranks of this job.

    Uses gloo for CPU tensors and NCCL for GPU tensors; local rank r uses GPU r. A rank that does
    not arrive at a collective within `timeout_seconds` raises a PeerError on the others.
    """
    if not timeout_seconds > 0:
        raise UsageError(f"timeout_seconds must be above 0, got {timeout_seconds!r}.")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise UsageError(
            "RANK and WORLD_SIZE are not set: this process was not started as one of several. "
            "Start it with `torchrun --nproc-per-node 2 ...`."
        )
    backend = "gloo"
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available() and local_rank < torch.cuda.device_count():
        torch.cuda.set_device(local_rank)
        backend = "cpu:gloo,cuda:nccl"
    try:
        _init_process_group(backend, timedelta(seconds=timeout_seconds))
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be set for torch.distributed: "
            f"{error}. torchrun sets them."
        ) from error
    except RuntimeError as error:
        raise PeerError(
            f"the ranks did not connect within {timeout_seconds:g} s: "
            f"{str(error).splitlines()[0].rstrip('.')}."
        ) from error
    ranks = ranks_in(None)
    try:
        yield ranks
    except PeerError:
        raise
    except BaseException as error:
        ranks.record_failure(error)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _init_process_group(backend: str, timeout: timedelta) -> None:
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group(backend, timeout=timeout)
        return
    # torchrun's store outlives the ranks: without a prefix for each attempt, a restarted rank may
    # find the address of a dead one
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    size = int(os.environ["WORLD_SIZE"])
    _joined.append(num_restarts())
    shared = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, size, is_master=False, timeout=timeout
    )
    dist.init_process_group(
        backend,
        store=PrefixStore(f"tapas/attempt {num_restarts()}/{len(_joined)}", shared),
        rank=int(os.environ["RANK"]),
        world_size=size,
        timeout=timeout,
    )
