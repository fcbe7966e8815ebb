"""Under `torchrun`: the ranks of a job find each other, and say why one of them stops."""

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
_joined: list[int] = []  # a process may join several times, each time under another name


def started_by_torchrun() -> bool:
    """Whether this process is a rank: of torchrun, or of whatever else sets RANK for several."""
    if "RANK" not in os.environ or not os.environ.get("WORLD_SIZE", "").isdigit():
        return False
    return "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ["WORLD_SIZE"]) > 1


def num_restarts() -> int:
    """How often torchrun has begun this job again after a fault."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def set_job_flag(ranks: Ranks, word: str) -> None:
    """Leave `word` for later attempts of this job, should torchrun have to start it again."""
    store = _job_store()
    if store is not None and ranks.rank == 0:
        store.set(f"tapas/has_job_flag/{word}", "1")


def has_job_flag(word: str) -> bool:
    """Whether an earlier attempt of this job has left `word`."""
    store = _job_store()
    return store is not None and bool(store.check([f"tapas/has_job_flag/{word}"]))


def _job_store() -> Any:
    """torchrun's own store, which outlives the ranks that it starts; None without torchrun."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=False, timeout=timedelta(seconds=30)
    )


@contextmanager
def join_ranks(*, timeout_seconds: float = TIMEOUT_SECONDS) -> Iterator[GroupRanks]:
    """The ranks of this job, for the length of the block.

    gloo for tensors on CPUs and NCCL for those on GPUs, of which rank r of a host takes
    number r. A rank that is not at a collective within `timeout_seconds` is given up.
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
        _find_each_other(backend, timedelta(seconds=timeout_seconds))
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must say where ranks meet: {error}. "
            "torchrun sets them."
        ) from error
    except RuntimeError as error:
        raise PeerError(
            f"the ranks have not found each other within {timeout_seconds:g} s: "
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


def _find_each_other(backend: str, timeout: timedelta) -> None:
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group(backend, timeout=timeout)
        return
    # torchrun's store outlives the ranks: without a name for each attempt, a rank that begins
    # again may find the address of one that is dead
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
