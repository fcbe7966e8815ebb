"""Memory, network traffic and disk of a run, computed before it starts.

Letters: C classes of D dimensions on m ranks; a step has B examples with L targets each, draws
a pool of r*n classes and keeps n of them.
"""

import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tapas.cgroups import groups_with
from tapas.distributed.collectives import HEADER
from tapas.errors import UsageError, choice
from tapas.optim import SGD, Adagrad, LazyAdam, RowUpdate, RowwiseAdagrad
from tapas.proposals.floor_and_head import directory_size
from tapas.shapes import check_positive


def available_memory(ranks_per_host: int | None = None, *, root: Path = Path("/")) -> int:
    """Bytes that this process may still allocate, by the host and its control groups (cgroups).

    Ranks on one host share the memory evenly; `ranks_per_host` defaults to torchrun's
    LOCAL_WORLD_SIZE.
    """
    if ranks_per_host is None:
        ranks_per_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    check_positive("ranks_per_host", ranks_per_host)
    return max(0, min((_free_on_host(root), *_free_in_groups(root)))) // ranks_per_host


def _free_on_host(root: Path) -> int:
    found = _numbers(root / "proc/meminfo").get("MemAvailable:")
    if found is not None:
        return 1024 * found
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # not Linux: total memory


def _free_in_groups(root: Path) -> Iterator[int]:
    """Free bytes of each cgroup with a limit that contains this process."""
    for folder, is_first in groups_with("memory", root):
        if is_first:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            names = ("memory.max", "memory.current", "inactive_file")
        limit, used = (_numbers(folder / name).get("") for name in names[:2])
        if limit is not None and used is not None:  # else no limit, or not visible here
            # inactive file pages are reclaimed first
            yield limit - used + _numbers(folder / "memory.stat").get(names[2], 0)


def _numbers(file: Path) -> dict[str, int]:
    """The number in each line by the word before it; empty if the file cannot be read."""
    try:
        found = re.findall(r"^(?:(\S+)\s+)?(\d+)\b", file.read_text(), flags=re.MULTILINE)
    except OSError:
        return {}
    return {name: int(number) for name, number in found}


ROW_BYTES = {"float32": 4, "bfloat16": 2}
OPTIMIZERS: dict[str, RowUpdate] = {
    "rowwise-adagrad": RowwiseAdagrad.fused(),
    "adagrad": Adagrad.fused(),
    "lazy-adam": LazyAdam.fused(),
    "sgd": SGD.fused(),
}
# Python, and what training imports of torch, polars and tensorboard; see benchmarks/bench_memory.py
PROCESS_BYTES = 400_000_000
LOG_BYTES = 24  # per event: items and times as files in memory, and where training may predict
POOL_BYTES = 200  # per class of the pool: draws, ids, indices, counts, noise, scores
HEAD_BYTES = 24  # per class above the proposal's floor: id, log(1 - q) and alias bucket
BUILD_BYTES = 112  # the same at the peak of building the proposal
SCORERS = 64  # queries that are scored against the pool at once
REPLICAS = 2  # copies of the model in a worker, for two steps at a time
ROLES = dict.fromkeys(("rank", "server", "worker"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """The sizes of a run that determine its memory and traffic."""

    num_classes: int
    dim: int
    num_samples: int
    presample_factor: int
    batch: int  # examples (queries) in a step, summed over all ranks
    targets: int = 1
    ranks: int = 1  # or servers
    role: str = "rank"  # whose memory is planned: rank, server or worker
    dtype: str = "float32"  # of the rows: float32 or bfloat16
    optimizer: str = "rowwise-adagrad"  # of the rows: rowwise-adagrad, adagrad, lazy-adam or sgd
    inputs: bool = False  # whether the encoder has a separate table of inputs, without biases
    input_ids: int | None = None  # distinct items the encoder reads in a step; None: one per query
    head_classes: int | None = None  # classes above the proposal's floor; None: all classes
    encoder_parameters: int = 0
    events: int = 0  # of the log, which every rank reads

    def __post_init__(self) -> None:
        for name in ("num_classes", "dim", "num_samples", "presample_factor", "batch", "targets"):
            check_positive(name, getattr(self, name))
        if self.num_samples > self.num_classes:
            raise UsageError(
                f"num_samples is {self.num_samples:,}, but there are only {self.num_classes:,} "
                "classes. Lower it."
            )
        choice("role", self.role, ROLES)
        if not 1 <= self.ranks <= self.num_samples:
            raise UsageError(
                f"{self.shards} must be between 1 and num_samples ({self.num_samples:,}), as each "
                f"{self.shards[:-1]} keeps at least one class of a step, got {self.ranks:,}."
            )
        choice("dtype", self.dtype, ROW_BYTES)
        choice("optimizer", self.optimizer, OPTIMIZERS)
        for name in ("input_ids", "head_classes", "encoder_parameters", "events"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"{name} must be at least 0, got {getattr(self, name):,}.")

    @property
    def shards(self) -> str:
        """What the class vectors are on: "ranks" or "servers"."""
        return "ranks" if self.role == "rank" else "servers"

    @property
    def head(self) -> int:
        most = self.num_classes
        return most if self.head_classes is None else min(self.head_classes, most)

    @property
    def pool(self) -> int:
        return min(self.presample_factor * self.num_samples, self.num_classes)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """Bytes by purpose: memory and traffic of the process of its role that needs most, and disk."""

    workload: Workload
    memory: dict[str, int]
    traffic: dict[str, int]  # bytes that a rank sends in a step
    disk: dict[str, int]  # bytes that all ranks write, without the log

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def traffic_bytes(self) -> int:
        return sum(self.traffic.values())


def memory_plan(workload: Workload) -> MemoryPlan:
    """Compute the memory, traffic and disk of `workload`."""
    return MemoryPlan(
        workload=workload,
        memory=_memory(workload),
        traffic=_traffic(workload),
        disk=_disk(workload),
    )


def _disk(w: Workload) -> dict[str, int]:
    """A run keeps the newest two checkpoints and the best; a new one is saved beside them."""
    whole = _memory(replace(w, ranks=1, role="rank"))
    names = ("rows", "biases", "row state", "input rows and state")
    checkpoint = sum(whole[name] for name in names) + 12 * w.encoder_parameters
    return {
        "a checkpoint": checkpoint,
        "two newest and the best": 3 * checkpoint,
        "while another is saved": 4 * checkpoint,
    }


def _memory(w: Workload) -> dict[str, int]:
    """Exact for tables; for a step, what torch allocates without native kernels."""
    num_rows, size = _over(w.num_classes, w.ranks), ROW_BYTES[w.dtype]
    specs = OPTIMIZERS[w.optimizer].state_specs().values()
    row_state = sum(4 * num_rows * (w.dim if spec.wide else 1) for spec in specs)
    bias_state = 4 * num_rows * len(specs)
    row = 4 * w.dim  # computations use float32
    examples = w.ranks * _over(w.batch, w.ranks)  # gathered on every rank
    pool_here, kept_here = _over(w.pool, w.ranks), _over(min(w.num_samples, w.pool), w.ranks)
    found = {
        "process": PROCESS_BYTES,
        "log": LOG_BYTES * w.events,
        "rows": num_rows * w.dim * size,
        "biases": num_rows * size,
        "row state": row_state + bias_state,
        "input rows and state": num_rows * w.dim * size + row_state if w.inputs else 0,
        "proposal": HEAD_BYTES * w.head + 4 * directory_size(w.num_classes, w.head)[0],
        "encoder, gradients, Adam": 16 * w.encoder_parameters,
        # gathered, local, and gradients as sent and received
        "batch": examples * (4 * row + 8 * w.targets + 12 * (w.targets + 1)),
        "pool": POOL_BYTES * w.pool + pool_here * (row + 4 * SCORERS),
        # rows as read; their gradients in blocks, joined, and without targets of other ranks
        "kept rows and gradients": 4 * row * (kept_here + examples * w.targets),
        "kept scores": 4 * examples * kept_here,
    }
    # before the first step: the proposal is built, then the rows from all biases
    steady = sum(found.values())
    proposal = PROCESS_BYTES + found["log"] + BUILD_BYTES * w.head
    start = 4 * w.num_classes if w.ranks > 1 or w.dtype == "bfloat16" else 0
    rows = start + sum(
        found[name] for name in ("process", "log", "rows", "biases", "row state", "proposal")
    )
    found["building the rows"] = max(0, rows - steady)
    found["building the proposal"] = max(0, proposal - max(rows, steady))
    if w.role == "server":
        return _server_memory(w, found)
    return _worker_memory(w, found) if w.role == "worker" else found


def _server_memory(w: Workload, rank: dict[str, int]) -> dict[str, int]:
    """Memory of a server, from that of a rank: its rows, and one request at a time."""
    num_rows, row = _over(w.num_classes, w.ranks), 4 * w.dim
    pool_here, kept_here = _over(w.pool, w.ranks), _over(min(w.num_samples, w.pool), w.ranks)
    names = ("process", "rows", "biases", "row state", "input rows and state")
    found = {name: rank[name] for name in names} | {
        "last updates of rows": 4 * num_rows * (2 if w.inputs else 1),
        "proposal": 0,
        "batch": w.batch * (row + 8 * w.targets),
        "pool": pool_here * (POOL_BYTES + row + 4 * SCORERS),
        "kept rows and gradients": 2 * row * (kept_here + w.batch * w.targets),
    }
    # before the first step: counts and biases of all classes, then the rows from these biases
    start = max(20 * w.num_classes, 4 * w.num_classes + sum(found[name] for name in names[1:]))
    found["building the rows"] = max(0, PROCESS_BYTES + start - sum(found.values()))
    found["building the proposal"] = 0
    return found


def _worker_memory(w: Workload, rank: dict[str, int]) -> dict[str, int]:
    """Memory of a worker, from that of a rank: no rows, but all that is kept, for two steps."""
    row, kept = 4 * w.dim, min(w.num_samples, w.pool)
    found = {
        "process": PROCESS_BYTES,
        "counts of classes": 8 * w.num_classes,
        "proposal": REPLICAS * rank["proposal"],
        "encoder and gradients": REPLICAS * rank["encoder, gradients, Adam"],
        "batch": REPLICAS * w.batch * (4 * row + 8 * w.targets),
        "pool": REPLICAS * POOL_BYTES * w.pool,
        "kept rows and gradients": REPLICAS * 4 * row * (kept + w.batch * w.targets),
        "kept scores": REPLICAS * 4 * w.batch * kept,
    }
    # before the first step: the last proposal is built beside the others
    others = found["counts of classes"] + (REPLICAS - 1) * rank["proposal"]
    building = PROCESS_BYTES + others + BUILD_BYTES * w.head
    found["building the proposal"] = max(0, building - sum(found.values()))
    return found


def _traffic(w: Workload) -> dict[str, int]:
    """What `Ranks.sent_bytes` counts in a step; uneven batches are padded."""
    away, share = w.ranks - 1, _over(w.batch, w.ranks)
    header = 8 * HEADER * away
    answers = away * share * 4 * (w.targets + 1)
    read = _over(w.batch if w.input_ids is None else w.input_ids, w.ranks) if w.inputs else 0
    return {
        # of the batch and of input rows, forward and backward; names of four messages
        "headers": header * (4 if w.inputs else 2) + 4 * 8 * away,
        "queries and targets": away * share * (4 * w.dim + 8 * w.targets),
        "answers": answers,
        "answers' gradients": answers,
        "query gradients": away * share * 4 * w.dim,
        # ids to the owner, rows back, gradients to the owner
        "inputs": math.ceil(read * away / w.ranks) * (8 + 2 * 4 * w.dim),
        "encoder gradients": 2 * 4 * w.encoder_parameters * away // w.ranks,
    }


def traffic_designs(workload: Workload) -> dict[str, int]:
    """Bytes that all processes together send in one step of B examples, for three designs.

    "rows to the worker": one worker reads the rows of pool and targets from m servers, and
        sends back the gradients of kept rows and targets.
    "algorithm 2" (the paper's): one worker sends its queries to each of m servers, gets the
        rows of kept classes and targets, and sends back their gradients.
    "no rows (ours)": m ranks that are workers and servers; see `memory_plan`.

    Ids of rows are not counted in the first two. Encoder and inputs cost the same in all designs
    and are left out. Without a second pass (r = 1) all of the pool is kept.
    """
    w, row = workload, 4 * (workload.dim + 1)
    num_targets = w.batch * w.targets
    touched = (min(w.num_samples, w.pool) + num_targets) * row
    ours = _traffic(replace(w, inputs=False, encoder_parameters=0))
    return {
        "rows to the worker": (w.pool + num_targets) * row + touched,
        "algorithm 2": w.ranks * w.batch * 4 * w.dim + 2 * touched,
        "no rows (ours)": w.ranks * sum(ours.values()),
    }


def describe_memory(planned: MemoryPlan, peak_bytes: int | None) -> str:
    """What was planned, and the peak where the system tells it."""
    words = f"{in_units(planned.memory_bytes)} planned"
    return f"Memory: {words if peak_bytes is None else f'{in_units(peak_bytes)} at most, {words}'}."


def check_fits(planned: MemoryPlan, available_bytes: int | None = None) -> None:
    """Raise UsageError if the plan needs more memory than there is, and suggest changes that fit.

    `available_bytes` is the memory of a process, by default what is free on this machine.
    """
    available = available_memory() if available_bytes is None else available_bytes
    if planned.memory_bytes <= available:
        return
    w = planned.workload
    largest = max(planned.memory, key=planned.memory.__getitem__)
    cures = "; ".join(_cures(w, available))
    raise UsageError(
        f"{w.num_classes:,} classes of {w.dim} dimensions on {w.ranks:,} "
        f"{w.shards[:-1] if w.ranks == 1 else w.shards} need {in_units(planned.memory_bytes)} a "
        f"{w.role}, but only {in_units(available)} are free. The largest item: {largest}, "
        f"{in_units(planned.memory[largest])}. "
        + (f"What would fit: {cures}." if cures else "No change that we know of would fit.")
        + _hint(planned)
    )


def check_machine_fits(workload: Workload, servers: int, workers: int) -> None:
    """Raise UsageError if a run with so many servers and workers does not fit this machine.

    `workload` is that of a run in one process.
    """
    free, alone = available_memory(1), memory_plan(workload).memory_bytes
    shared = replace(workload, ranks=min(servers, workload.num_samples), role="server")
    server = memory_plan(shared).memory_bytes
    worker = memory_plan(replace(shared, role="worker")).memory_bytes
    encoder = PROCESS_BYTES + 16 * workload.encoder_parameters

    def need(workers: int) -> int:
        return servers * server + (workers + 1) * worker + encoder

    if need(workers) <= free:
        return
    less = {"--servers 0": alone} | ({"--workers 1": need(1)} if workers > 1 else {})
    cures = [f"{flag} ({in_units(size)})" for flag, size in less.items() if size <= free]
    raise UsageError(
        f"{workload.num_classes:,} classes of {workload.dim} dimensions need "
        f"{in_units(need(workers))} on this machine, but only {in_units(free)} are free. Servers: "
        f"{servers:,} of {in_units(server)}; workers and this process: {workers + 1:,} of "
        f"{in_units(worker)}; encoder server: {in_units(encoder)}. "
        + (f"What would fit: {', or '.join(cures)}. " if cures else "")
        + "With --ray-address, several machines share the rows."
    )


def _hint(planned: MemoryPlan) -> str:
    """A sentence if much of the memory is the proposal, whose size was not given."""
    w = planned.workload
    proposal = planned.memory["proposal"] + planned.memory["building the proposal"]
    if w.head_classes is not None or 4 * proposal < planned.memory_bytes:
        return ""
    head = _example_head(w)
    less = memory_plan(replace(w, head_classes=head)).memory
    much = "Most" if 2 * proposal >= planned.memory_bytes else "Much"
    return (
        f" {much} of it is the proposal, {in_units(proposal)}, which assumes that every class was "
        f"seen more than once: --head {_power(head)} needs "
        f"{in_units(less['proposal'] + less['building the proposal'])}."
    )


def _example_head(w: Workload) -> int:
    """A hundredth of the classes as a power of ten: how many were perhaps seen more than once."""
    return int(10 ** max(1, math.floor(math.log10(w.num_classes)) - 2))


def _power(number: int) -> str:
    """A power of ten as people type it: 1e7."""
    return f"1e{len(str(number)) - 1}"


def _cures(w: Workload, available: int) -> Iterator[str]:
    def need(**changed: Any) -> int:
        return memory_plan(replace(w, **changed)).memory_bytes

    def with_size(words: str, **changed: Any) -> str:
        return f"{words} ({in_units(need(**changed))})"

    def enough_ranks(**changed: Any) -> int | None:
        """The smallest number of ranks that fits, after `changed`."""
        too_few = ranks = w.ranks
        while ranks < w.num_samples and need(ranks=ranks, **changed) > available:
            too_few, ranks = ranks, min(2 * ranks, w.num_samples)
        if need(ranks=ranks, **changed) > available:
            return None
        return 1 + _last(too_few, ranks, lambda m: need(ranks=m, **changed) > available)

    ranks = enough_ranks()
    if ranks is not None:
        yield with_size(f"{ranks:,} {w.shards} with as much memory each", ranks=ranks)
    lighter = {"dtype": "bfloat16"} if w.dtype == "float32" else {}
    if w.optimizer in ("adagrad", "lazy-adam"):
        lighter["optimizer"] = "rowwise-adagrad"
    words = {"dtype": "bfloat16 rows", "optimizer": f"rowwise-adagrad instead of {w.optimizer}"}
    alone = [name for name in lighter if need(**{name: lighter[name]}) <= available]
    for name in alone:
        yield with_size(words[name], **{name: lighter[name]})
    if not alone and len(lighter) == 2 and need(**lighter) <= available:
        yield with_size(" and ".join(words.values()), **lighter)
    head = _example_head(w)
    if w.head_classes is None and ranks is None and need(head_classes=head) > available:
        # without --head nothing may suffice: what would, beside it
        flag = f"--head {_power(head)}"
        fewer = enough_ranks(head_classes=head)
        if fewer is not None:
            yield with_size(f"{flag} and {fewer:,} {w.shards}", head_classes=head, ranks=fewer)
        for name, value in lighter.items():
            if need(head_classes=head, **{name: value}) <= available:
                changed = {"head_classes": head, name: value}
                yield with_size(f"{flag} and {words[name]}", **changed)
    elif ranks is None and not alone:
        for name, value in lighter.items():
            fewer = enough_ranks(**{name: value})
            if fewer is not None:
                also = f"{fewer:,} {w.shards} and {words[name]}"
                yield with_size(also, ranks=fewer, **{name: value})
    if w.head and w.role != "server" and need(head_classes=0) <= available:
        head = _last(0, w.head, lambda h: need(head_classes=h) <= available)
        yield with_size(
            f"at most {head:,} classes that were seen more than once", head_classes=head
        )
    if need(num_classes=w.num_samples) <= available:
        most = _last(w.num_samples, w.num_classes, lambda c: need(num_classes=c) <= available)
        yield with_size(f"{most:,} classes", num_classes=most)


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Bisect: the last integer below `high` for which `holds`; it holds at `low`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def in_units(num_bytes: float) -> str:
    """Bytes with three digits and a decimal unit: "5.12 GB" is 5.12e9 bytes."""
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    while num_bytes >= 999.5 and len(units) > 1:
        num_bytes, units = num_bytes / 1000, units[1:]
    return f"{num_bytes:.3g} {units[0]}"


def _over(total: int, count: int) -> int:
    """Division that rounds up."""
    return -(-total // count)
