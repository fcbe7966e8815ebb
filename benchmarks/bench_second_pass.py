"""How far is the second pass from its floor?

The floor is the bare gather and matrix product of the same shapes in the same chunks. Target: at
most 1.3 times the floor for (B, r*n, D) = (1024, 8000, 64) and (1024, 64000, 64).
"""

import torch
from measuring import interleave, ratio, spread, write_record

import tapas
from tapas.selection import priority, top

NUM_CLASSES = 500_000
SHAPES = [(1024, 8_000, 64), (1024, 64_000, 64)]


def contenders(num_queries: int, pool_size: int, dim: int):
    table = tapas.LocalTable(NUM_CLASSES, dim, row_optimizer=tapas.SGD())
    query = torch.randn(num_queries, dim, generator=tapas.stream(0, "query"))
    own = torch.randint(NUM_CLASSES, (num_queries, 1), generator=tapas.stream(0, "own"))
    pool = tapas.Uniform(NUM_CLASSES).sample(pool_size, generator=tapas.stream(0, "pool"))

    def floor(queries: int, chunk: int):
        part, scratch = query[:queries].t(), torch.empty(min(chunk, pool_size), queries)

        def call() -> None:
            for start in range(0, pool_size, chunk):
                rows = table.weight.index_select(0, pool.ids[start : start + chunk])
                torch.mm(rows, part, out=scratch[: len(rows)])

        return call

    def second_pass(rule: tapas.Selection):
        queries = rule.score_queries or num_queries

        def call() -> None:
            table.select(
                query[:queries],
                pool,
                pool_size // 8,
                1.0,
                rule=rule,
                own=own[:queries],
                complete=queries == num_queries,
                generator=tapas.stream(0, "keep"),
            )

        return call

    return {
        "floor, all queries": floor(num_queries, top.CHUNK),
        "top, all queries": second_pass(tapas.Top()),
        "priority, all queries": second_pass(tapas.Priority(score_queries=None)),
        "floor, 64 queries": floor(64, priority.CHUNK),
        "priority, 64 queries (default)": second_pass(tapas.Priority()),
    }


def main() -> None:
    results: dict[str, object] = {}
    for shape in SHAPES:
        seconds = interleave(contenders(*shape), repeats=25)
        whole, small = seconds["floor, all queries"], seconds["floor, 64 queries"]
        print(f"\n(B, r*n, D) = {shape}")
        for name, values in seconds.items():
            own_floor = small if "64" in name else whole
            print(
                f"  {name:<32}{spread(values):<28}{ratio(values, own_floor):<22}of its floor, "
                f"{ratio(values, whole)} of all queries'"
            )
        results[str(shape)] = seconds
    write_record(
        "second-pass",
        {"num_classes": NUM_CLASSES, "keep": "pool / 8", "proposal": "uniform"},
        {"seconds": results},
    )


if __name__ == "__main__":
    main()
