"""How long is one round trip of the paper's Algorithm 2, and how much of it is transport?

One worker, which is this process, and m servers, each a process that Ray runs, one thread each:
B=1000 queries score a pool of r*n classes of C=500,000, D=64. The paper's size is r*n = 100,000
and its rule is `top` by all queries; 64 score for `priority`. A round trip begins with queries,
pool and targets, and ends with the rows of kept classes and targets, in order, on the worker.

Transport is the same round trip with servers that read the message and answer with as many bytes,
but score nothing, without the time that the worker splits the pool and puts answers together. The
two take turns with a push of gradients and with the same second pass in one process. Target:
transport is at most 10 % of the round trip, for the paper's rule at the paper's size.

If m servers share fewer than m cores, they score one after the other, and the share of transport
looks smaller. So a second share is computed as if every server had its own core: transport over
the sum of transport, the worker's splitting and joining, and the CPU seconds of the server that
scored longest.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from clocked_servers import Batch, Watched, make_server, round_trip
from measuring import Target, interleave, ratio_quartiles, spread, write_record
from sections import percent

import tapas
from tapas.optim.row_store import RowGradients
from tapas.selection import as_selection
from tapas.servers.channel import ServerChannel
from tapas.servers.peers import Peers, call_all
from tapas.servers.ray_peers import RayPeers
from tapas.servers.ray_session import ray_session
from tapas.servers.served_table import ServedTable
from tapas.servers.worker import STEPS_AT_ONCE
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import SecondPass
from tapas.tables.shard import TableSpec
from tapas.training.memory_plan import Workload, traffic_designs

C, D, B, R = 500_000, 64, 1000, 8
SERVERS = (2, 6)  # one for each of two cores; as in the paper
RULES = {"top": "top, all queries", "priority": "priority, 64 queries"}
REPEATS = {12_500: 16, 8_000: 8, 1_000: 16}  # by n
PAPER = "top", 12_500
BATCHES = 4  # prepared before the clock starts
WHOLE, ECHO, PUSH, ALONE = "round trip", "transport", "push", "one process"
OPTIMIZER = tapas.optim.RowwiseAdagrad.fused(lr=0.1)
Seconds = dict[str, list[float]]  # by part of the round trip, one value for each turn


def zipf_proposal(num_classes: int) -> tapas.Proposal:
    counts = (10 * num_classes / np.arange(1, num_classes + 1)).astype(np.int64)
    return tapas.Squashed(counts, alpha=0.75)


def make_batches(
    table: tapas.LocalTable, proposal: tapas.Proposal, num_samples: int, rule: str, size: int
) -> list[Batch]:
    """Random queries and Zipf-like targets, `size` of each, and a pool of r*n classes."""
    selection = as_selection(rule)
    made = []
    for number in range(BATCHES):
        draws = tapas.rng.stream(0, "batch", number)
        query = torch.randn(size, table.dim, generator=draws) / 4
        chance = torch.rand(size, 1, generator=draws, dtype=torch.float64)
        target = torch.expm1(chance * np.log1p(table.num_classes)).long()
        batch = GlobalBatch.local(query, target.clamp_(max=table.num_classes - 1))
        pool = proposal.sample(R * num_samples, generator=draws)
        how = SecondPass.draw(batch, pool, num_samples, selection, 1.0, generator=draws)
        made.append(Batch(pool, how, target))
    return made


class Contenders:
    """`alone`, one process with all rows, and `peers`, servers with its shards, on `batches`."""

    def __init__(self, peers: Peers, alone: tapas.LocalTable, batches: Sequence[Batch]):
        spec = TableSpec(
            alone.num_classes, alone.dim, peers.size, alone.row_optimizer, seed=alone.seed
        )
        self.peers, self.alone, self.batches = peers, alone, batches
        self.kept = [alone.select(batch.pool, batch.second_pass).ids for batch in batches]
        self.table = ServedTable(ServerChannel(Watched(peers)), "rows", spec)
        self.echoing = ServedTable(ServerChannel(Watched(peers, {"score": "echo"})), "rows", spec)
        self.verbs = {
            WHOLE: self.full_round_trip,
            ECHO: self.echo,
            PUSH: self.push,
            ALONE: self.one_process,
        }
        self.turns: dict[str, list[dict[str, float]]] = {name: [] for name in self.verbs}
        self.sent_bytes = {"to score": 0, "answers": 0, "to push": 0}

    def check(self) -> None:
        """Check that the servers keep the same classes as one process."""
        for batch, kept in zip(self.batches, self.kept, strict=True):
            if not torch.equal(round_trip(self.table, batch).kept.ids, kept):
                raise SystemExit(f"{self.peers.size} servers keep other classes than one process.")

    def in_turns(self, repeats: int) -> dict[str, Seconds]:
        calls = {name: partial(self._take_turn, name) for name in self.verbs}
        timed = interleave(calls, repeats=repeats)
        return {
            name: {
                part: [turn[part] for turn in turns[-len(timed[name]) :]]  # without the warm-up
                for part in turns[0]
            }
            for name, turns in self.turns.items()
        }

    def _take_turn(self, name: str) -> None:
        verb: Callable[[int], dict[str, float]] = self.verbs[name]
        self.turns[name].append(verb(len(self.turns[name]) % len(self.batches)))

    def full_round_trip(self, number: int) -> dict[str, float]:
        traffic, before = self.table.channel.traffic, call_all(self.peers, "clocks")
        sent, received = traffic.sent_bytes, traffic.received_bytes
        seconds = round_trip(self.table, self.batches[number]).seconds
        self.sent_bytes["to score"] = traffic.sent_bytes - sent
        self.sent_bytes["answers"] = traffic.received_bytes - received
        clocks = np.subtract(call_all(self.peers, "clocks"), before)
        busy, cpu = clocks.max(axis=0).tolist()
        return seconds | {"busy": busy, "cpu": cpu, "cpu of all": float(clocks[:, 1].sum())}

    def echo(self, number: int) -> dict[str, float]:
        return round_trip(self.echoing, self.batches[number]).seconds

    def push(self, number: int) -> dict[str, float]:
        """Push gradients of all rows of a step; they are 0, so that no row changes."""
        ids = torch.cat([self.batches[number].target.flatten(), self.kept[number]])
        gradient = torch.zeros(len(ids), self.table.dim)
        watch: Any = self.table.channel.servers
        watch.seconds.clear()
        sent, started = self.table.channel.traffic.sent_bytes, time.perf_counter()
        zeros = RowGradients(ids, gradient, gradient[:, 0])
        self.table.move_rows(self.table.spec.row_optimizer, zeros, None)
        taken = time.perf_counter() - started
        self.sent_bytes["to push"] = self.table.channel.traffic.sent_bytes - sent
        return {"whole": taken, "between": watch.seconds.total()}

    def one_process(self, number: int) -> dict[str, float]:
        """The same second pass in one process, and reading the rows of the same classes."""
        batch, started = self.batches[number], time.perf_counter()
        kept = self.alone.select(batch.pool, batch.second_pass)
        self.alone.rows(torch.cat([torch.unique(batch.target), kept.ids]))
        return {"whole": time.perf_counter() - started}


def own_cores(seconds: dict[str, Seconds]) -> list[float]:
    """Seconds of each round trip as if every server had a core."""
    trip = seconds[WHOLE]
    parts = (seconds[ECHO]["between"], trip["splitting"], trip["joining"], trip["cpu"])
    return [sum(turn) for turn in zip(*parts, strict=True)]


def planned_bytes(servers: int, num_samples: int) -> int:
    """Bytes of a step, according to `tapas plan`."""
    workload = Workload(
        num_classes=C,
        dim=D,
        num_samples=num_samples,
        presample_factor=R,
        batch=B,
        ranks=servers,
    )
    return traffic_designs(workload)["algorithm 2"]


def show(name: str, found: dict[str, Any]) -> None:
    print(f"\n{name}")
    seconds = found["seconds"]
    total, transport = seconds[WHOLE]["whole"], seconds[ECHO]["between"]
    for contender, parts in seconds.items():
        print(f"  {contender:<14}{spread(parts['between' if contender == ECHO else 'whole'])}")
    print(f"  transport is {percent(transport, total)} of the round trip,")
    print(f"    with a core for each server {percent(transport, found['own_cores_seconds'])}")
    for contender in (WHOLE, ECHO):
        middle = {part: 1000 * statistics.median(v) for part, v in seconds[contender].items()}
        print(f"  {contender}, ms: " + ", ".join(f"{k} {v:.2f}" for k, v in middle.items()))
    sent = found["sent_bytes"] | {"planned": found["planned_bytes"]}
    print("  bytes: " + ", ".join(f"{what} {size:,}" for what, size in sent.items()))


def transport_target(name: str, seconds: dict[str, Seconds]) -> Target:
    shares = ratio_quartiles(seconds[ECHO]["between"], seconds[WHOLE]["whole"])
    reading, low, high = (100 * share for share in shares)
    return Target(
        measure=f"transport of a round trip, {name}",
        target=10,
        kind="at most",
        reading=reading,
        low=low,
        high=high,
        unit="%",
    )


def main() -> None:
    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = {}
    targets = []
    proposal = zipf_proposal(C)
    with ray_session():
        for servers in SERVERS:
            spec = TableSpec(C, D, servers, OPTIMIZER)
            alone = tapas.LocalTable(C, D, row_optimizer=OPTIMIZER, num_shards=servers)
            factories = [partial(make_server, spec, number) for number in range(servers)]
            # the number of threads of a server with one worker
            peers = RayPeers.start("server", factories, threads=STEPS_AT_ONCE + 1)
            for num_samples, repeats in REPEATS.items():
                for rule, words in RULES.items():
                    name = f"{words}, n={num_samples}, {servers} servers"
                    batches = make_batches(alone, proposal, num_samples, rule, B)
                    contenders = Contenders(peers, alone, batches)
                    contenders.check()
                    seconds = contenders.in_turns(repeats)
                    results[name] = {
                        "seconds": seconds,
                        "own_cores_seconds": own_cores(seconds),
                        "sent_bytes": contenders.sent_bytes,
                        "planned_bytes": planned_bytes(servers, num_samples),
                    }
                    show(name, results[name])
                    if (rule, num_samples) == PAPER:
                        targets.append(transport_target(name, seconds))
            peers.close()
    cores = len(os.sched_getaffinity(0))
    write_record(
        "servers",
        {"C": C, "D": D, "B": B, "r": R, "cores": cores, "threads of a process": 1},
        {"settings": results},
        targets=targets,
    )


if __name__ == "__main__":
    main()
