"""What does approximate scoring in the second pass save, and what does it cost?

Variants of priority (approximate_scores.py), which all keep n of 8n classes, are compared by:

- time of the second pass over 64,000 and 8,000 classes of 64 dimensions, against the default.
  bfloat16 and D/4 read a copy of the table and rewrite n of its rows each time, as many as a step
  updates. int8 has no native kernel: it is timed in torch, next to float32 in torch. The time of
  reused scores is a mean over steps, without the time saved by drawing fewer pools.
- closeness to the exact choice (all queries score, same pool, same noise), on a synthetic task
  after a short training and on models of real data: the share of it that is kept, the correlation
  of the shares, and the error of a query's sum over the pool, estimated from the kept classes.
- MAP@20 after training on real data. `--train DATA_FOLDER [CACHE_FOLDER]` runs what is missing in
  scoring_quality.json, on one thread, and times nothing.
"""

import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import approximate_scores as approximate
import torch
from approximate_scores import DEFAULT, Closeness, Variant, variants
from measuring import arguments, interleave, ratio, write_record
from sections import table
from torch import Tensor

import tapas
import tapas.native as native
from experiments.real.cells import R
from experiments.real.runs import RealRun, build_run, open_set
from experiments.real.sets import Place
from tapas.atomic_file import atomic_write
from tapas.cli.options import cache_folder
from tapas.comparison.contenders import NEXT_ITEMS
from tapas.evaluation.intervals import STUDENT
from tapas.evaluation.points import PointEvaluator, spread_points
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import SecondPass
from tapas.training.step import step

POOLS, DIM, BATCH, NUM_CLASSES = (64_000, 8_000), 64, 1024, 500_000
QUALITY = Path(__file__).parent / "scoring_quality.json"
# priority with n samples; alpha and learning rate as chosen in results/real-data
TRAINED: dict[str, dict[str, Any]] = {
    "rust": {"num_samples": 256, "alpha": 1.0, "rows_lr": 0.3, "batch": 32, "steps": 2_000},
    "linux": {"num_samples": 1_000, "alpha": 0.75, "rows_lr": 0.3, "batch": 16, "steps": 600},
}
SEEDS = (0, 1)
STEPS, LOOKS = 600, 24  # to train on the synthetic task; to compare choices
MOST_LOST = 1.0  # percent of MAP@20
TORCH = "64 queries, float32 in torch"
Call = Callable[[], object]


def contenders(pool_size: int) -> dict[str, tuple[Call, int]]:
    """The functions to time for every variant, and the number of steps that each stands for."""
    keep, few = pool_size // R, tapas.Priority().score_queries
    exact = tapas.LocalTable(NUM_CLASSES, DIM, row_optimizer=tapas.optim.SGD.fused())
    half = tapas.LocalTable(
        NUM_CLASSES, DIM, row_optimizer=tapas.optim.SGD.fused(), dtype=torch.bfloat16
    )
    small = tapas.LocalTable(NUM_CLASSES, approximate.project(exact.weight[:1]).shape[1])
    small.requires_grad_(False)
    integers, scale = approximate.to_int8(exact.weight)
    query = torch.randn(BATCH, DIM, generator=tapas.rng.stream(0, "query"))
    target = torch.randint(NUM_CLASSES, (BATCH, 1), generator=tapas.rng.stream(0, "own"))
    pool = tapas.Uniform(NUM_CLASSES).sample(pool_size, generator=tapas.rng.stream(0, "pool"))
    moved = pool.ids[torch.randperm(pool_size, generator=tapas.rng.stream(0, "moved"))[:keep]]

    def select(rows: tapas.LocalTable, scoring: Tensor, rule: tapas.Selection) -> None:
        batch = GlobalBatch.local(scoring, target[: len(scoring)])
        generator = tapas.rng.stream(0, "keep")
        how = SecondPass.draw(batch, pool, keep, rule, 1.0, generator=generator)
        rows.select(pool, replace(how, complete=len(scoring) == BATCH))

    def plain(score_queries: int | None) -> Call:
        rule = tapas.Priority(score_queries=score_queries)
        return lambda: select(exact, query[:score_queries], rule)

    def copied(copy: tapas.LocalTable, coarsen: Callable[[Tensor], Tensor]) -> Call:
        def call() -> None:
            copy.weight.index_copy_(0, moved, coarsen(exact.weight.index_select(0, moved)))
            select(copy, coarsen(query[:few]).float(), tapas.Priority())

        return call

    def in_torch() -> None:
        with native.switched_off():
            select(exact, query[:few], tapas.Priority())

    def in_int8() -> None:
        integers[moved], scale[moved] = approximate.to_int8(exact.weight.index_select(0, moved))
        rows = integers.index_select(0, pool.ids), scale.index_select(0, pool.ids)
        offset = exact.bias[pool.ids] - pool.log_q
        share = approximate.int8_share(rows, query[:few], offset, pool.ids, target[:few])
        noise = 1 - torch.rand(pool_size, generator=tapas.rng.stream(0, "keep"))
        (share / noise).topk(keep + 1)

    def reused(hold: int) -> Call:
        rule = approximate.Stale()

        def call() -> None:
            rule.seen.clear()
            for _ in range(hold):
                select(exact, query[:few], rule)

        return call

    special = {
        "bfloat16": copied(half, Tensor.bfloat16),
        "int8": in_int8,
        "D/4": copied(small, approximate.project),
    }
    calls: dict[str, tuple[Call, int]] = {}
    for name, variant in variants().items():
        if variant.hold > 1:
            calls[name] = reused(variant.hold), variant.hold
        else:
            calls[name] = special.get(name, plain(variant.rule.score_queries)), 1
    calls[TORCH] = in_torch, 1
    return calls


def time_all() -> dict[int, dict[str, list[float]]]:
    """Seconds of a step's second pass, by pool and variant."""
    seconds = {}
    for pool_size in POOLS:
        calls = contenders(pool_size)
        found = interleave({name: call for name, (call, _) in calls.items()}, repeats=25)
        seconds[pool_size] = {
            name: [value / calls[name][1] for value in values] for name, values in found.items()
        }
    return seconds


def train_one(run: RealRun, variant: Variant, place: Place) -> dict[str, Any]:
    """MAP@20 and loss at the test points of `run`, trained with the scores of `variant`."""
    log, split = open_set(run.real_set, place)
    parts = build_run(run, place, log, split)
    model, clip = parts.model, parts.config.optimizer.clip
    variant.install(model.head)
    done = 0

    @torch.no_grad()
    def draw() -> tuple[Tensor, Tensor]:
        batch = parts.windows.batch(done)
        states = model.states(batch.items, batch.lengths)
        return states.view(-1, states.shape[2])[batch.query_index], batch.target

    def train_on(steps: int) -> None:
        nonlocal done
        for number in range(done, done + steps):
            batch = parts.windows.batch(number)
            step(model, parts.optimizer, batch, seed=run.seed, number=number, clip=clip)
        done += steps

    train_on(run.steps)
    points = spread_points(log, split.test, run.real_set.points)
    evaluator = PointEvaluator(log, split, points, NEXT_ITEMS, run.real_set.model.history)
    scores = evaluator.scores(*evaluator.rank(model, len(points)))
    kept = {name: scores[name] for name in ("map@20", "loss", "recall@20")}
    if variant == variants()[DEFAULT] and run.seed == SEEDS[-1]:
        near = approximate.closeness(model.head, draw, train_on, steps=LOOKS)
        kept["closeness"] = {name: found._asdict() for name, found in near.items()}
    return kept


def train(place: Place) -> None:
    """Run what is missing in scoring_quality.json, seed by seed."""
    torch.set_num_threads(1)
    quality = read_quality()
    done = {(run["set"], run["seed"], run["variant"]) for run in quality["runs"]}
    wanted = itertools.product(TRAINED, SEEDS, variants())
    for name, seed, words in (key for key in wanted if key not in done):
        run = RealRun(set=name, method="priority", presample_factor=R, seed=seed, **TRAINED[name])
        found = train_one(run, variants()[words], place)
        quality["runs"].append({"set": name, "variant": words, "seed": seed, **found})
        quality["settings"][name] = asdict(run) | {"seed": "as said of each run"}
        with atomic_write(QUALITY) as unfinished:
            unfinished.write_text(json.dumps(quality, indent=1) + "\n")
        print(f"{name}, seed {seed}, {words}: MAP@20 {found['map@20']:.4f}", flush=True)


def read_quality() -> dict[str, Any]:
    if QUALITY.exists():
        return json.loads(QUALITY.read_text())
    command = "python benchmarks/bench_scoring.py --train DATA_FOLDER"
    return {"command": command, "torch": torch.__version__, "settings": {}, "runs": []}


class Gap(NamedTuple):
    """MAP@20 of a variant, and its difference from the default in percent."""

    mean: float
    percent: float
    half: float  # of the 95 % interval of `percent`
    seeds: int

    @property
    def as_good(self) -> bool:
        """Not significantly lower, and by at most a percent."""
        return self.percent + self.half >= 0 and self.percent >= -MOST_LOST


def gaps(runs: Sequence[Mapping[str, Any]]) -> dict[str, Gap]:
    """The gap of every variant on one set, over the seeds that all variants have.

    MAP@20 is modelled as an effect of the variant plus one of the seed plus noise. The variance of
    the noise is estimated from the residuals of all variants.
    """
    score = {(run["variant"], run["seed"]): run["map@20"] for run in runs}
    names = list(variants())
    seeds = [s for s in sorted({s for _, s in score}) if all((n, s) in score for n in names)]
    if not seeds:
        return {}
    found = torch.tensor([[score[n, s] for s in seeds] for n in names], dtype=torch.float64)
    mean = found.mean(dim=1)
    left = found - mean[:, None] - found.mean(dim=0) + found.mean()
    freedom = (len(names) - 1) * (len(seeds) - 1)
    half = math.inf
    if freedom:
        variance = float(left.square().sum()) / freedom
        half = STUDENT[min(freedom, len(STUDENT)) - 1] * math.sqrt(2 * variance / len(seeds))
    base = float(mean[names.index(DEFAULT)])
    return {
        name: Gap(m, 100 * (m / base - 1), 100 * half / base, len(seeds))
        for name, m in zip(names, mean.tolist(), strict=True)
    }


def rows_of(
    seconds: Mapping[int, Mapping[str, Sequence[float]]],
    near: Mapping[str, Mapping[str, Closeness]],
    quality: Mapping[str, Mapping[str, Gap]],
) -> list[dict[str, str]]:
    """The table: a row for each variant."""
    rows = []
    for name in [*variants(), TORCH]:
        row = {"scores": name}
        for size, taken in seconds.items():
            row[f"time, {size:,}"] = ratio(taken[name], taken[DEFAULT])
        for task, found in near.items():
            c = found.get(name)
            row[f"overlap, {task}"] = f"{100 * c.overlap:.0f} %" if c else ""
            row[f"correlation, {task}"] = f"{c.correlation:.2f}" if c else ""
            row[f"error of the sum, {task}"] = f"{100 * c.sum_error:.0f} %" if c else ""
        for task, trained in quality.items():
            gap = trained.get(name)
            row[f"MAP@20, {task}"] = f"{gap.mean:.4f} ({gap.percent:+.1f} %)" if gap else ""
        rows.append(row)
    return rows


def verdict(
    seconds: Mapping[str, Sequence[float]], quality: Mapping[str, Mapping[str, Gap]]
) -> str:
    """A sentence with the best trade-off and the rule that chose it."""
    if not quality:
        return "No variant has been trained on real data yet, so nothing is known about MAP@20."
    good = [name for name in variants() if all(q[name].as_good for q in quality.values())]
    best = min(good, key=lambda name: statistics.median(seconds[name]))
    resolution = (
        f"{name}, {q[DEFAULT].seeds} seeds: differences above {q[DEFAULT].half:.1f} % are "
        "significant"
        if q[DEFAULT].seeds > 1
        else f"{name}, one seed: no interval"
        for name, q in quality.items()
    )
    return (
        f"Best trade-off: {best}, {ratio(seconds[best], seconds[DEFAULT])} of the default's time. "
        f"The rule: of the variants whose mean MAP@20 is at most {MOST_LOST:g} % below the "
        "default's, and whose 95 % interval reaches it, on every set, the one with the least time "
        f"over {POOLS[0]:,} classes. On {'; on '.join(resolution)}."
    )


def main() -> None:
    words = arguments()
    if words:
        if words[0] != "--train" or len(words) not in (2, 3):
            raise SystemExit(f"expected --train DATA_FOLDER [CACHE_FOLDER], got {' '.join(words)}")
        train(Place(Path(words[1]), cache_folder(Path(words[2]) if len(words) == 3 else None)))
        return
    task = approximate.SyntheticTask()
    task.train(STEPS)
    near = {"made-up": approximate.closeness(task.head, task.draw, task.train, steps=LOOKS)}
    runs = read_quality()["runs"]
    for run in runs:
        if "closeness" in run:
            near[run["set"]] = {n: Closeness(**found) for n, found in run["closeness"].items()}
    quality = {name: gaps([run for run in runs if run["set"] == name]) for name in TRAINED}
    quality = {name: found for name, found in quality.items() if found}
    seconds = time_all()
    rows, conclusion = rows_of(seconds, near, quality), verdict(seconds[POOLS[0]], quality)
    print(table(list(rows[0]), [list(row.values()) for row in rows]), conclusion, sep="\n\n")
    write_record(
        "scoring",
        {"num_classes": NUM_CLASSES, "batch": BATCH, "dim": DIM, "keep": f"pool / {R}"},
        {"rows": rows, "conclusion": conclusion, "seconds": seconds},
    )


if __name__ == "__main__":
    main()
