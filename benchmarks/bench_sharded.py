"""How much faster do two ranks train than one, on the same global batch, one thread each?

The head step and the training step of `tapas train` (GRU over 30 items), C=500,000, B=1024,
and the training step once more with B=4096, where messages are fewer for the same work. One rank
is one process with a `LocalTable`; two are two processes with a `ShardedTable`, gloo over
loopback. They take turns. Target: two ranks do at least 1.6 times the steps of one. Beside it: the
share of a step that is spent in collectives (waiting for the other rank included), and the bytes
that a rank sends, against `tapas plan`.
"""

import multiprocessing as mp
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from bench_whole_step import zipf_ids
from measuring import interleave, ratio, ratio_target, spread, write_record

import tapas
from tapas.data.windows import SequenceBatch
from tapas.distributed.collectives import GroupRanks
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.training import step as steps
from tapas.training.build import build_model, build_optimizer, dense_parameters, workload_of
from tapas.training.config import build_config
from tapas.training.memory_plan import Workload, memory_plan

C, D, HISTORY, R = 500_000, 64, 30, 8
HEAD, TRAINING = "head step", "training step"
SETTINGS = [  # kind of step, B, n
    (HEAD, 1024, 1000),
    (HEAD, 1024, 8000),
    (TRAINING, 1024, 1000),
    (TRAINING, 1024, 8000),
    (TRAINING, 4096, 1000),
]
BATCHES, STEPS = 4, 4  # prepared before timing starts; taken in each turn
Step = Callable[[], None]


def counts() -> np.ndarray[Any, np.dtype[np.int64]]:
    return (10 * C / np.arange(1, C + 1)).astype(np.int64)


def config(batch: int, num_samples: int) -> Any:
    return build_config(
        {
            "log": {"files": ["none.parquet"]},  # not read: the data is synthetic
            "model": {"encoder": "gru", "dim": D, "history": HISTORY},
            "head": {
                "next_items": 1,
                "positions": "last",
                "num_samples": num_samples,
                "presample_factor": R,
            },
            "loop": {"batch": batch},
        }
    )


def head_step(batch: int, num_samples: int, ranks: Ranks) -> Step:
    options: dict[str, Any] = {"row_optimizer": tapas.optim.RowwiseAdagrad.fused(lr=0.1)}
    table = (
        tapas.LocalTable(C, D, **options)
        if ranks is ONE_PROCESS
        else tapas.ShardedTable(C, D, group=ranks, **options)
    )
    head = tapas.TapasSoftmax(
        table=table,
        num_samples=num_samples,
        presample_factor=R,
        proposal=tapas.Squashed(counts(), alpha=0.75),
    )
    mine = slice(*ranks.local_range(batch))
    query = torch.randn(BATCHES, batch, D, generator=tapas.rng.stream(0, "query"))[:, mine] / 4
    target = zipf_ids((BATCHES, batch), "target")[:, mine]
    turn = 0

    def step() -> None:
        nonlocal turn
        head(query[turn % BATCHES].clone().requires_grad_(), target[turn % BATCHES]).backward()
        turn += 1

    return step


def training_step(batch: int, num_samples: int, ranks: Ranks) -> Step:
    settings = config(batch, num_samples)
    model = build_model(settings, counts(), ranks)
    optimizer = build_optimizer(settings.optimizer, dense_parameters(model))
    lengths = torch.full((batch,), HISTORY)
    places = torch.arange(batch) * HISTORY + HISTORY - 1
    items = zipf_ids((BATCHES, batch, HISTORY), "items")
    target = zipf_ids((BATCHES, batch, 1), "target")
    data = [SequenceBatch(items[i], lengths, places, target[i]) for i in range(BATCHES)]
    turn = 0

    def step() -> None:
        nonlocal turn
        clip = settings.optimizer.clip
        given = data[turn % BATCHES]
        steps.step(model, optimizer, given, seed=0, number=turn, clip=clip, ranks=ranks)
        turn += 1

    return step


def rank(
    number: int, size: int, folder: str, setting: tuple[str, int, int], orders: Connection
) -> None:
    """The process of one rank: runs the steps it is sent and reports the time in collectives."""
    torch.set_num_threads(1)
    ranks: Any = ONE_PROCESS
    if size > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/{size}",
            rank=number,
            world_size=size,
            timeout=timedelta(seconds=120),
        )
        ranks = GroupRanks()
    kind, batch, num_samples = setting
    step = (head_step if kind == HEAD else training_step)(batch, num_samples, ranks)
    orders.send(None)
    while (steps := orders.recv()) is not None:
        before = (0.0, 0) if ranks is ONE_PROCESS else (ranks.seconds, ranks.sent_bytes)
        start = time.perf_counter()
        for _ in range(steps):
            step()
        took = time.perf_counter() - start
        after = (0.0, 0) if ranks is ONE_PROCESS else (ranks.seconds, ranks.sent_bytes)
        orders.send((took / steps, (after[0] - before[0]) / took, (after[1] - before[1]) / steps))
    if size > 1:
        dist.destroy_process_group()


class Job:
    """Rank processes that wait for a number of steps."""

    def __init__(self, size: int, folder: str, setting: tuple[str, int, int]):
        spawn = mp.get_context("spawn")
        pipes = [spawn.Pipe() for _ in range(size)]
        self.shares: list[float] = []
        self.sent_bytes = 0.0
        self.orders = [mine for mine, _ in pipes]
        self.processes = [
            spawn.Process(target=rank, args=(number, size, folder, setting, theirs))
            for number, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()
        for order in self.orders:
            order.recv()

    def __call__(self) -> None:
        for order in self.orders:
            order.send(STEPS)
        answers = [order.recv() for order in self.orders]
        self.shares.append(sum(share for _, share, _ in answers) / len(answers))
        self.sent_bytes = max(sent for _, _, sent in answers)

    def close(self) -> None:
        for order in self.orders:
            order.send(None)
        for process in self.processes:
            process.join(60)


def planned_bytes(kind: str, batch: int, num_samples: int) -> int:
    if kind == HEAD:
        workload = Workload(
            num_classes=C,
            dim=D,
            num_samples=num_samples,
            presample_factor=R,
            batch=batch,
            ranks=2,
        )
        return memory_plan(workload).traffic_bytes
    ranks = Ranks()
    ranks.size = 2
    return memory_plan(workload_of(config(batch, num_samples), counts(), ranks)).traffic_bytes


def main() -> None:
    results: dict[str, dict[str, Any]] = {}
    targets = []
    for setting in SETTINGS:
        with tempfile.TemporaryDirectory() as folder:
            jobs = {
                name: Job(size, folder, setting) for name, size in (("1 rank", 1), ("2 ranks", 2))
            }
            seconds = interleave(jobs, repeats=20)
            for job in jobs.values():
                job.close()
        seconds = {name: [s / STEPS for s in values] for name, values in seconds.items()}
        two = jobs["2 ranks"]
        shares = two.shares[-len(seconds["2 ranks"]) :]
        kind, batch, num_samples = setting
        name = f"{kind}, B={batch}, n={num_samples}"
        planned = planned_bytes(*setting)
        print(f"\n{name}")
        for ranks, values in seconds.items():
            times = ratio(seconds["1 rank"], values)
            print(f"  {ranks:<10}{spread(values):<34}{times} × the steps of one")
        print(f"  in collectives: {100 * statistics.median(shares):.0f} % of a step")
        print(f"  a rank sends {two.sent_bytes:,.0f} bytes a step; planned at most {planned:,}")
        measure = f"steps of 2 ranks / of 1, {name}"
        targets.append(
            ratio_target(measure, seconds["1 rank"], seconds["2 ranks"], "at least", 1.6)
        )
        results[name] = {
            "seconds": seconds,
            "share_in_meetings": shares,
            "sent_bytes": two.sent_bytes,
            "planned_bytes": planned,
        }
    write_record(
        "sharded",
        {"C": C, "D": D, "history": HISTORY, "r": R, "threads of a rank": 1},
        {"settings": results},
        targets=targets,
    )


if __name__ == "__main__":
    main()
