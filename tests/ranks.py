"""`run_ranks(3, work)` runs `work(ranks, *args)` in three gloo processes."""

import gc
import os
import tempfile
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tapas.distributed.collectives import GroupRanks

TIMEOUT_SECONDS = 30
CONTEXT = mp.get_context("forkserver")  # so that imports run only once
PRELOAD = ["torch", "torch._dynamo", "pytest", "tapas.cli.main"]  # DDP needs dynamo
PRELOAD += [  # imported by commands when they are called
    "torch.utils.tensorboard", "tapas.training.run", "tapas.servers.run", "tapas.comparison.figures"
]  # fmt: skip
PRELOAD += ["typer.testing", "experiments.__main__"]  # imported by many tests
CONTEXT.set_forkserver_preload(PRELOAD)


def run_ranks(num_ranks, work, *args, timeout=TIMEOUT_SECONDS):
    """Returns the answers by rank; they must work with torch.save. Raises all tracebacks."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            CONTEXT.Process(
                target=_rank, args=(rank, num_ranks, folder, timeout, work, args), daemon=True
            )
            for rank in range(num_ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout + 60)
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
        failures = [
            f"rank {rank}:\n{file.read_text()}"
            for rank in range(num_ranks)
            if (file := Path(folder, f"{rank}.error")).exists()
        ]
        if failures:
            raise AssertionError("\n".join(failures))
        answers = []
        for rank, process in enumerate(processes):
            file = Path(folder, f"{rank}.answer")
            if not file.exists():
                raise AssertionError(f"rank {rank} ended with {process.exitcode}, no answer")
            answers.append(torch.load(file, weights_only=False))
        return answers


def quick_process():
    """One thread, no waiting for the disk; what is imported is no garbage, nor copied by a fork.

    That files are flushed, and in which order, is tested by `crash_points.py`. Commands that are
    started as `python -m tapas` flush them.
    """
    torch.set_num_threads(1)
    os.fsync = os.fstat  # fails for the same descriptors
    gc.freeze()


def _rank(rank, num_ranks, folder, timeout, work, args):
    quick_process()
    warnings.simplefilter("error")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=num_ranks,
            timeout=timedelta(seconds=timeout),
        )
        answer = work(GroupRanks(), *args)
        torch.save(answer, Path(folder, f"{rank}.partial"))
        os.rename(Path(folder, f"{rank}.partial"), Path(folder, f"{rank}.answer"))
        dist.destroy_process_group()
    except BaseException:
        Path(folder, f"{rank}.error").write_text(traceback.format_exc())
        os._exit(1)
