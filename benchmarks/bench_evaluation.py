"""How far is a whole evaluation from its floor?  3,395 users, C=10^6, D=64.

An evaluation is what `tapas evaluate` does once a run is open: the 20 best of all items and the
full softmax loss of the next 5, exactly, for every held-out user; the lists of the three
baselines; all metrics with their intervals. The floor is the bare matrix product of as many
queries with all rows, into a scratch block, in chunks of the fastest of a few sizes. The log is
made up: items are log-uniform, users have between 2 and 1,000 events in baskets of 1 to 4, and the
model has random rows and the default encoder. Targets: at most 1.3 times the floor, whether items
of the history may be listed or not.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from bench_top import SHAPES, product
from measuring import (
    fastest,
    interleave,
    peak_bytes,
    quick,
    ratio,
    ratio_target,
    spread,
    write_record,
)

import tapas
from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints, Split, SplitConfig, split_log
from tapas.encoders import GRUEncoder
from tapas.evaluation.baselines import COUNTING, rank_by_counting, title_of
from tapas.evaluation.evaluate import evaluate, held_out
from tapas.evaluation.ranked_lists import ListOptions, ranked_lists
from tapas.training.model import SequenceModel

USERS, C, D, HISTORY, NEXT_ITEMS, REPEATS = 4000, 10**6, 64, 50, 5, 5
KEEP, EXCLUDE = "seen items may be listed", "seen items are left out"


def made_up_log() -> EventLog:
    """Log-uniform lengths of histories and items; a basket has 1 to 4 events."""
    draw = np.random.default_rng(0)
    lengths = np.exp(draw.uniform(math.log(2), math.log(1000), USERS)).astype(np.int64) + 1
    offsets = np.append(0, np.cumsum(lengths))
    num_events = int(offsets[-1])
    items = np.expm1(draw.random(num_events) * math.log1p(C)).astype(np.int32).clip(max=C - 1)
    new_basket = draw.random(num_events) < 0.4
    new_basket[offsets[:-1]] = True
    times = np.cumsum(new_basket)
    # the last 10 events have times of their own, so that every user has something held out
    back = np.repeat(offsets[1:], lengths) - np.arange(num_events)
    times = np.where(back <= 10, 10 * num_events - back, times)
    arrays = {"items": items, "times": times, "offsets": offsets}
    return EventLog(Path(), arrays, {"items": C, "time_kind": "number"})


def random_model() -> SequenceModel:
    inputs = tapas.LocalTable(C, D, bias=False, seed=1)
    head = tapas.TapasSoftmax(C, D, num_samples=1000)
    return SequenceModel(GRUEncoder(D, seed=1), head, inputs=inputs).eval()


def parts(
    model: SequenceModel, log: EventLog, split: Split, points: EvalPoints
) -> dict[str, Callable[[], object]]:
    """What an evaluation consists of, items of the history left out."""
    options = ListOptions(HISTORY, exclude_seen=True)
    _, target = held_out(log, split, options, num_targets=NEXT_ITEMS)
    found: dict[str, Callable[[], object]] = {
        "lists and losses of the model": lambda: ranked_lists(model, log, points, target, options)
    }
    for name in COUNTING:
        found[f"baseline: {title_of(name)}"] = lambda name=name: rank_by_counting(
            name, log, split, points, exclude_seen=True
        )
    return found


def main() -> None:
    log, model = made_up_log(), random_model()
    split = split_log(log, SplitConfig(kind="last", test=5))
    points = split.test
    query = torch.randn(len(points), D, generator=tapas.rng.stream(0, "query"))
    table = model.output_table
    tried = {str(shape): product(table, query[:1000], shape, C // 8) for shape in SHAPES}
    shape = SHAPES[list(tried).index(fastest(tried))]

    def whole(exclude_seen: bool) -> Callable[[], object]:
        options = ListOptions(HISTORY, exclude_seen)
        return lambda: evaluate(model, log, split, options, num_targets=NEXT_ITEMS)

    contenders = {
        "product": product(table, query, shape, C),
        f"evaluation, {KEEP}": whole(False),
        f"evaluation, {EXCLUDE}": whole(True),
        **parts(model, log, split, points),
    }
    seconds = interleave(contenders, repeats=1 if quick() else REPEATS, warmup=1)
    peak = peak_bytes(whole(True))
    print(f"{len(points):,} users, {log.num_events:,} events, {C:,} items; {shape} at a time")
    for name, values in seconds.items():
        print(f"{name:<40}{spread(values):<32}{ratio(values, seconds['product'])} of the product")
    print(f"peak memory of an evaluation beyond the model: {peak / 1e6:.0f} MB")
    write_record(
        "evaluation",
        {"users": len(points), "events": log.num_events, "C": C, "D": D, "history": HISTORY,
         "floor_queries": shape[0], "floor_classes": shape[1]},
        {"seconds": seconds, "peak_bytes": peak},
        targets=[
            ratio_target(
                f"exact evaluation with baselines, {how} / bare matrix products",
                seconds[f"evaluation, {how}"],
                seconds["product"],
                "at most",
                1.3,
            )
            for how in (KEEP, EXCLUDE)
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
