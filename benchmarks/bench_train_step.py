"""Where does the time of a training step go?  C=500,000, D=64, B=256 histories of 50, GRU.

The parts are timed in the order of a step. Target: data takes at most 5 %.
"""

import itertools
import statistics
import tempfile
import time
from pathlib import Path

import torch
from measuring import Target, quartiles, quick, write_record

from tapas.comparison.synthetic_log import SyntheticLogConfig, write_synthetic_log
from tapas.data.prepare import prepare_log
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig, split_log
from tapas.losses import sampled_softmax_loss
from tapas.training.build import TrainingSetup, build_training
from tapas.training.config import build_config

CLASSES, STEPS, WARMUP = 500_000, 60, 10
PARTS = ("data", "encoder", "pass 1", "pass 2", "loss", "backward and update")


def timed_step(parts: TrainingSetup, number: int) -> list[float]:
    """Seconds of each of PARTS in one step."""
    model, head = parts.model, parts.model.head
    clock = [time.perf_counter()]
    batch = parts.windows.batch(number)
    clock.append(time.perf_counter())
    states = model.states(batch.items, batch.lengths)
    query = states.view(-1, states.shape[2]).index_select(0, batch.query_index)
    prepared = head._prepare(query, batch.target, None)
    clock.append(time.perf_counter())
    everyone = head._gather(prepared, None)
    pool, second_pass = head._two_passes(everyone)
    clock.append(time.perf_counter())
    kept = head.table.select(pool, second_pass)
    clock.append(time.perf_counter())
    positive, log_sum = head.table.sampled_logits(everyone, kept)
    loss = sampled_softmax_loss(positive, log_sum, prepared.weight, prepared.counted).mean()
    clock.append(time.perf_counter())
    parts.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    parts.optimizer.step()
    clock.append(time.perf_counter())
    return [b - a for a, b in itertools.pairwise(clock)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        shape = SyntheticLogConfig(num_users=20_000, num_items=CLASSES, num_groups=1_000)
        write_synthetic_log(path, shape)
        log = prepare_log(LogSource(files=(str(path),)), Path(folder) / "cache")
        split = split_log(log, SplitConfig())
        config = build_config(
            {
                "log": {"files": [str(path)]},
                "head": {"num_samples": 1000, "presample_factor": 8},
                "loop": {"batch": 256},
            }
        )
        parts = build_training(config, log, split)
        steps = STEPS // 10 if quick() else STEPS
        rows = [timed_step(parts, i) for i in range(WARMUP + steps)][WARMUP:]
        queries = len(parts.windows.batch(0).query_index)
    totals = [sum(row) for row in rows]
    middle = statistics.median(totals)
    print(f"{log.num_items:,} classes, {queries} queries in a batch, n = 1,000, r = 8, priority")
    print(f"{'part':<22}{'ms':>8}{'share':>8}")
    for place, name in enumerate(PARTS):
        part = statistics.median(row[place] for row in rows)
        print(f"{name:<22}{1000 * part:>8.2f}{part / middle:>8.1%}")
    low, high = quartiles(totals)
    print(f"{'step':<22}{1000 * middle:>8.2f}   [{1000 * low:.2f}, {1000 * high:.2f}]")
    shares = [100 * row[0] / sum(row) for row in rows]
    low, high = quartiles(shares)
    write_record(
        "train-step",
        {"classes": CLASSES, "batch": 256, "steps": STEPS, "num_threads": torch.get_num_threads()},
        {"parts": list(PARTS), "seconds": rows},
        targets=[
            Target(
                measure="share of data in a training step",
                target=5,
                kind="at most",
                reading=statistics.median(shares),
                low=low,
                high=high,
                unit="%",
            )
        ],
    )


if __name__ == "__main__":
    main()
