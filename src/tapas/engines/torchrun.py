"""Under `torchrun`: the ranks of a job find each other, and say why one of them stops."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from tapas.errors import PeerError, UsageError
from tapas.tables.ranks import Ranks, ranks_of

TIMEOUT_SECONDS = 120.0


def started_by_torchrun() -> bool:
    """Whether this process is one rank of several (or of one) that torchrun has started."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def num_restarts() -> int:
    """How often torchrun has begun this job again after a fault."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def join_ranks(*, timeout_seconds: float = TIMEOUT_SECONDS) -> Iterator[Ranks]:
    """The ranks of this job, for the length of the block.

    gloo for tensors on CPUs and NCCL for those on GPUs, of which rank r of a host takes
    number r. A rank that does not come to a meeting within `timeout_seconds` is given up.
    """
    if not timeout_seconds > 0:
        raise UsageError(f"timeout_seconds must be above 0, got {timeout_seconds!r}.")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise UsageError(
            "RANK and WORLD_SIZE are not set: this process was not started as one of several. "
            "Start it with `torchrun --nproc-per-node 2 ...`."
        )
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    try:
        _find_each_other(backend, timedelta(seconds=timeout_seconds))
    except RuntimeError as error:
        raise PeerError(
            f"the ranks have not found each other within {timeout_seconds:g} s: "
            f"{str(error).splitlines()[0]}."
        ) from error
    ranks = ranks_of(None)
    try:
        yield ranks
    except PeerError:
        raise
    except BaseException as error:
        ranks.last_words(error)
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
    shared = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, size, is_master=False, timeout=timeout
    )
    dist.init_process_group(
        backend,
        store=PrefixStore(f"tapas/attempt {num_restarts()}", shared),
        rank=int(os.environ["RANK"]),
        world_size=size,
        timeout=timeout,
    )
