"""Step times against the number of classes: every head alone, without encoder.

A step is loss, backward and update of the rows, for random queries and targets with Zipf's
frequencies; one thread. Every measurement runs in a separate process, one after another. A method
that adapts does some of its work only in some steps, so its times are means over many steps.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tapas.comparison.contenders import CONTENDERS, by_name
from tapas.comparison.ledger import Ledger
from tapas.comparison.process_pool import run_missing
from tapas.data.event_log import EventLog
from tapas.data.windows import Windows
from tapas.errors import UsageError
from tapas.heads import FlatHead, Head
from tapas.heads.facts import BuildContext, default_num_samples
from tapas.optim import RowwiseAdagrad, anchors
from tapas.peak_memory import forget_peak, peak_bytes
from tapas.rng import stream
from tapas.tables import LocalTable
from tapas.training.build import TrainingData, bias_from_counts
from tapas.training.memory_plan import available_memory

WARM_UP = 2
LONGEST_STEP = 20.0  # seconds
MOST_MEMORY = 0.6  # of what is free
EVENTS_PER_CLASS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRun:
    """One head with one number of classes."""

    contender: str
    num_classes: int
    num_samples: int
    dim: int
    examples: int  # B
    repeats: int  # readings
    block: int  # steps whose mean is one reading

    def key(self) -> str:
        return f"step of {self.contender} with {self.num_classes} classes"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimesConfig:
    """Which heads, with how many classes."""

    contenders: tuple[str, ...] = tuple(CONTENDERS)
    classes: tuple[int, ...] = (10_000, 70_000, 100_000, 1_000_000)
    dim: int = 64
    examples: int = 256
    repeats: int = 15
    block: int = 64  # steps whose mean is one reading, of a method that adapts
    fresh_processes: bool = True  # one for each measurement, so that memory can be measured


def step_runs(config: StepTimesConfig) -> list[StepRun]:
    """Fewest classes first: their times decide whether more can be tried."""
    return [
        StepRun(
            contender=contender.name,
            num_classes=num_classes,
            num_samples=default_num_samples(num_classes) if contender.draws else 0,
            dim=config.dim,
            examples=config.examples,
            repeats=2 if contender.kind.learns_state else config.repeats,
            block=config.block if contender.kind.learns_state else 1,
        )
        for num_classes in config.classes
        for contender in by_name(config.contenders)
    ]


def measure_step_times(
    ledger: Ledger, config: StepTimesConfig, progress: Callable[[int, int], None]
) -> None:
    """Measure what the ledger lacks, or add the reason to it."""
    runs = step_runs(config)
    progress(0, len(runs))
    for place, run in enumerate(runs):
        if run not in ledger:
            words = reason_to_skip(run, _known(ledger, run, runs), available_memory())
            if words is None:
                words = _measured(ledger, run, fresh=config.fresh_processes)
            if words is not None:
                ledger.add({"key": run.key(), "run": asdict(run), "skipped": words})
        progress(place + 1, len(runs))


def _measured(ledger: Ledger, run: StepRun, *, fresh: bool) -> str | None:
    """Why it could not be measured, or None."""
    try:  # a pool of two workers starts a process for each run; here there is one
        run_missing(ledger, [run], time_steps, lambda done, total: None, workers=2 if fresh else 1)
    except BrokenProcessPool:
        return "its process was killed, probably out of memory"
    return None


def _known(ledger: Ledger, run: StepRun, runs: list[StepRun]) -> dict[int, float | None]:
    """Seconds of a step with fewer classes; None where it was skipped."""
    return {
        other.num_classes: median_of(ledger[other])
        for other in runs
        if other.contender == run.contender and other.num_classes < run.num_classes
    }


def median_of(result: Mapping[str, Any]) -> float | None:
    return None if "skipped" in result else statistics.median(result["step_seconds"])


def reason_to_skip(run: StepRun, known: Mapping[int, float | None], free: int) -> str | None:
    """Why to skip a run: a step would take over 20 s, or more memory than there is.

    Times grow as they did between the last two sizes in `known`, or with C if there is one.
    """
    if any(seconds is None for seconds in known.values()):
        return "skipped with fewer classes already"
    needed = 4 * run.num_classes * (2 * run.dim + 4)  # rows, a gradient of all, optimizer state
    if needed > MOST_MEMORY * free:
        return (
            f"needs about {needed / 2**30:.3g} GiB, more than {MOST_MEMORY:.0%} of the "
            f"{free / 2**30:.3g} GiB that are free"
        )
    times = [(size, seconds) for size, seconds in sorted(known.items()) if seconds is not None]
    if not times:
        return None
    size, seconds = times[-1]
    power = 1.0
    if len(times) > 1:
        before, earlier = times[-2]
        power = max(0.0, math.log(seconds / earlier) / math.log(size / before))
    expected = seconds * (run.num_classes / size) ** power
    if expected > LONGEST_STEP:
        return f"a step would take about {expected:.0f} s, more than {LONGEST_STEP:g} s"
    return None


def time_steps(run: StepRun) -> dict[str, Any]:
    """Build the head and take steps; the first two blocks are not counted."""
    torch.set_num_threads(1)
    named = {"key": run.key(), "run": asdict(run)}
    forget_peak()
    try:
        head, windows = build_alone(run)
    except UsageError as refusal:
        return {**named, "skipped": str(refusal)}
    dense = [p for p in head.parameters() if p.requires_grad and p not in anchors(head)]
    optimizer = torch.optim.AdamW(dense, lr=1e-3) if dense else None
    taken = []
    warm_up = WARM_UP * run.block
    for number in range(warm_up + run.repeats * run.block):
        batch = windows.batch(number)
        query = torch.randn(run.examples, run.dim, generator=stream(0, "queries", number))
        query.requires_grad_()
        context = batch.items[:, 0] if head.wants_context else None
        start = time.perf_counter()
        head(query, batch.target, context=context).backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        taken.append(time.perf_counter() - start)
        if taken[-1] > LONGEST_STEP:
            words = f"a step took {taken[-1]:.0f} s, more than {LONGEST_STEP:g} s"
            return {**named, "skipped": words}
    return {
        **named,
        "step_seconds": [
            round(statistics.fmean(taken[start : start + run.block]), 7)
            for start in range(warm_up, len(taken), run.block)
        ],
        "peak_bytes": peak_bytes(),
        "scores_per_example": float(head.scores_per_example),
    }


def build_alone(run: StepRun) -> tuple[Head, Windows]:
    """The head of a contender with its first settings, and batches to train it on."""
    contender, counts = CONTENDERS[run.contender], zipf_counts(run.num_classes)
    steps = (WARM_UP + run.repeats) * run.block
    feed, windows = zipf_feed(counts, run.examples, steps * run.examples)
    rows, table = RowwiseAdagrad.fused(lr=0.1), None
    if issubclass(contender.kind, FlatHead):
        bias = bias_from_counts(counts)
        table = LocalTable(run.num_classes, run.dim, row_optimizer=rows, bias=bias)
    config = contender.head(run.num_samples, contender.trials(1)[0].knob)
    context = BuildContext(
        counts=torch.from_numpy(counts),
        dim=run.dim,
        seed=0,
        steps=steps,
        table=table,
        row_optimizer=rows,
        pairs=partial(feed.pairs, config.next_items),
        upcoming=feed.upcoming,
    )
    return contender.kind.from_options(config.options, context), windows


def zipf_counts(num_classes: int) -> NDArray[np.int64]:
    """(C,) about 10 C events, falling like 1 / (class + 1), each class at least once."""
    share = 1 / np.arange(1, num_classes + 1)
    counts = share / share.sum() * EVENTS_PER_CLASS * num_classes
    rounded: NDArray[np.int64] = np.maximum(1, np.rint(counts)).astype(np.int64)
    return rounded


def zipf_feed(
    counts: NDArray[np.int64], batch: int, num_examples: int
) -> tuple[TrainingData, Windows]:
    """`num_examples` users who take one class and then another, both drawn by `counts`."""
    draw = np.random.default_rng(stream(0, "events").initial_seed())
    edges = np.cumsum(counts)
    items = np.searchsorted(edges, draw.integers(edges[-1], size=2 * num_examples), side="right")
    return pairs_feed(items.reshape(-1, 2), len(counts), batch)


def pairs_feed(
    pairs: NDArray[np.integer], num_classes: int, batch: int
) -> tuple[TrainingData, Windows]:
    """Users with two events each, `pairs` (U, 2): the second is to be predicted from the first."""
    offsets = np.arange(0, pairs.size + 1, 2)
    arrays: dict[str, NDArray[Any]] = {
        "items": pairs.astype(np.int64).reshape(-1),
        "times": np.tile([0, 1], len(pairs)),
        "offsets": offsets,
    }
    log = EventLog(Path(), arrays, {"items": num_classes})
    windows = Windows(
        log.items, log.times, log.offsets, offsets[1:],
        length=1, next_items=1, positions="last", batch_size=batch,
    )  # fmt: skip
    return TrainingData(windows, log, offsets[1:]), windows


def break_even(slow: Mapping[int, float], fast: Mapping[int, float]) -> float:
    """The number of classes from which on a step of `slow` takes longer than one of `fast`.

    Both give seconds by number of classes; between two of these, lines in the logarithms of
    both. The smallest number that both have if `slow` is slower there already, inf if it is
    not even at the largest. Where they cross more than once, the last time counts.

    >>> break_even({100: 1.0, 10_000: 100.0}, {100: 10.0, 10_000: 10.0})
    1000.0
    """
    sizes = sorted(slow.keys() & fast.keys())
    if not sizes:
        raise UsageError("nothing was measured with the same number of classes for both.")
    lead = {size: math.log(slow[size] / fast[size]) for size in sizes}
    if lead[sizes[-1]] <= 0:
        return math.inf
    for below, above in reversed(list(pairwise(sizes))):
        if lead[below] <= 0:
            part = -lead[below] / (lead[above] - lead[below])
            crossing = math.log10(below) + part * (math.log10(above) - math.log10(below))
            return float(round(10**crossing, 6))
    return float(sizes[0])
