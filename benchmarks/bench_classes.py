"""Does a step get slower with the number of classes?  D=16, B=1024, n=1000, r=8, priority.

Targets: at 10^8 classes at most 1.3 times the step at 10^5, and memory beyond the table and its
row state at most 5 % of them. Needs about 10 GB of memory. With a number as argument, only that
many sizes are measured, the smallest first.
"""

import statistics

import torch
from measuring import (
    Target,
    arguments,
    interleave,
    peak_bytes,
    ratio,
    ratio_target,
    spread,
    write_record,
)

import tapas

SIZES = [10**5, 10**6, 10**7, 10**8]
SEEN = 50_000  # classes above the floor of the proposal
B, D, N, R = 1024, 16, 1000, 8


def make_step(num_classes: int):
    ids = torch.randperm(10**5, generator=tapas.rng.stream(0, "seen"))[:SEEN] * (
        num_classes // 10**5
    )
    counts = torch.randint(1, 1000, (SEEN,), generator=tapas.rng.stream(0, "counts"))
    head = tapas.TapasSoftmax(
        num_classes,
        D,
        num_samples=N,
        presample_factor=R,
        proposal=tapas.Squashed((ids, counts), num_classes=num_classes, alpha=0.75),
        row_optimizer=tapas.optim.RowwiseAdagrad.fused(lr=0.1),
    )
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "query")).requires_grad_()

    def step() -> None:
        generator = tapas.rng.stream(0, "target", head.step)
        head(query, torch.randint(num_classes, (B,), generator=generator)).backward()

    table_bytes = sum(part.nbytes for part in head.table.row_tensors().values())
    return step, table_bytes


def main() -> None:
    sizes = SIZES[: int(arguments()[0])] if arguments() else SIZES
    made = {f"{size:.0e}": make_step(size) for size in sizes}
    steps = {name: step for name, (step, _) in made.items()}
    # first of all, since later steps reuse the memory that the first ones allocate
    extra = {
        name: peak_bytes(lambda step=step: [step() for _ in range(5)])
        for name, step in steps.items()
    }
    seconds = interleave(steps, repeats=60, warmup=10)
    first, last = next(iter(steps)), list(steps)[-1]
    print(f"{'classes':>8}  {'step':<26}{'against 1e+05':<22}{'table':>10}  beyond it")
    for name, (_, table_bytes) in made.items():
        print(
            f"{name:>8}  {spread(seconds[name]):<26}{ratio(seconds[name], seconds[first]):<22}"
            f"{table_bytes / 1e6:>7.0f} MB  {extra[name] / 1e6:.1f} MB"
        )
    write_record(
        "classes",
        {"B": B, "D": D, "n": N, "r": R, "seen": SEEN, "selection": "priority"},
        {
            "step_seconds": seconds,
            "median_step_seconds": {k: statistics.median(v) for k, v in seconds.items()},
            "table_bytes": {name: size for name, (_, size) in made.items()},
            "peak_bytes_beyond_table": extra,
        },
        targets=[
            ratio_target(
                f"head step at {last} classes / at {first} (D={D})",
                seconds[last],
                seconds[first],
                "at most",
                1.3,
            ),
            Target(
                measure=f"peak memory beyond table and row state at {last} classes",
                target=5,
                kind="at most",
                reading=100 * extra[last] / made[last][1],
                unit="%",
            ),
        ],
    )


if __name__ == "__main__":
    main()
