"""The two tables of docs/scaling.md: what a billion classes take, by the memory plan.

`python benchmarks/scaling_tables.py` prints them.
"""

from typing import Any

from tapas.training.memory_plan import Workload, in_units, memory_plan, traffic_designs

BATCH, SAMPLES, PRESAMPLE = 1_000, 10_000, 10  # the sizes that the paper speaks of
BILLION, HOSTS, SEEN = 10**9, 50, 10**7


def designs_table() -> str:
    """Traffic of one step by three designs, as docs/scaling.md shows it."""
    lines = [
        "| D | m | rows to the worker | Algorithm 2 | no rows (ours) | ours, each rank sends "
        "| Algorithm 2 : rows | ours : rows | ours : Algorithm 2 |",
        "|" + "---|" * 9,
    ]
    for dim in (64, 128, 256):
        for ranks in (10, 20, 50, 100):
            rows, servers, ours = traffic_designs(_at_scale(dim=dim, ranks=ranks)).values()
            sizes = (f"{size / 1e6:.1f} MB" for size in (rows, servers, ours))
            ratios = (f"{a / b:.2f}" for a, b in ((servers, rows), (ours, rows), (ours, servers)))
            cells = (dim, ranks, *sizes, f"{ours / ranks / 1e6:.2f} MB", *ratios)
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def billion_table() -> str:
    """Memory and traffic of a rank for a billion classes, as docs/scaling.md shows it."""
    kinds = [
        ("float32", "rowwise-adagrad"),
        ("bfloat16", "rowwise-adagrad"),
        ("float32", "lazy-adam"),
    ]
    plans = [
        memory_plan(_at_scale(ranks=HOSTS, dtype=dtype, optimizer=optimizer, inputs=True))
        for dtype, optimizer in kinds
    ]
    lines = [
        "| | " + " | ".join(f"{dtype}, {optimizer}" for dtype, optimizer in kinds) + " |",
        "|" + "---|" * (1 + len(kinds)),
    ]

    def add(name: str, sizes: list[int]) -> None:
        if any(sizes):
            lines.append(f"| {name} | " + " | ".join(in_units(size) for size in sizes) + " |")

    for name in plans[0].memory:
        add(name, [planned.memory[name] for planned in plans])
    add("**memory of a rank**", [planned.memory_bytes for planned in plans])
    for name in plans[0].traffic:
        add(f"sent: {name}", [planned.traffic[name] for planned in plans])
    add("**sent by a rank in a step**", [planned.traffic_bytes for planned in plans])
    return "\n".join(lines)


def _at_scale(**changed: Any) -> Workload:
    usual = {
        "num_classes": BILLION,
        "dim": 64,
        "num_samples": SAMPLES,
        "presample_factor": PRESAMPLE,
        "batch": BATCH,
        "head_classes": SEEN,
    }
    return Workload(**{**usual, **changed})


if __name__ == "__main__":
    print(f"{designs_table()}\n\n{billion_table()}")
