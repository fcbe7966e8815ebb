"""How far is the second pass from its floor?

The floor is the bare gather and matrix product of the same shapes, in chunks of the
fastest of a few sizes. Target: a pass that scores with all queries takes at most 1.15
times its floor, for (B, r*n, D) = (1024, 8000, 64) and (1024, 64000, 64).
"""

from collections.abc import Callable

import torch
from measuring import fastest, interleave, ratio, ratio_target, spread, write_record

import tapas
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import SecondPass

NUM_CLASSES = 500_000
SHAPES = [(1024, 8_000, 64), (1024, 64_000, 64)]
CHUNKS = (512, 1024, 2048, 4096, 8192, 16384)  # classes at a time; the floor takes the fastest
FEW = 64  # queries


def contenders(
    num_queries: int, pool_size: int, dim: int
) -> tuple[dict[str, Callable[[], None]], dict[str, str]]:
    """The functions to time, and the chunk size chosen for each floor."""
    table = tapas.LocalTable(NUM_CLASSES, dim, row_optimizer=tapas.optim.SGD.fused())
    query = torch.randn(num_queries, dim, generator=tapas.rng.stream(0, "query"))
    target = torch.randint(NUM_CLASSES, (num_queries, 1), generator=tapas.rng.stream(0, "own"))
    pool = tapas.Uniform(NUM_CLASSES).sample(pool_size, generator=tapas.rng.stream(0, "pool"))

    def floor(queries: int, chunk: int) -> Callable[[], None]:
        part, scratch = query[:queries].t(), torch.empty(min(chunk, pool_size), queries)
        gathered = torch.empty(min(chunk, pool_size), dim)

        def call() -> None:
            for start in range(0, pool_size, chunk):
                ids = pool.ids[start : start + chunk]
                rows = torch.index_select(table.weight, 0, ids, out=gathered[: len(ids)])
                torch.mm(rows, part, out=scratch[: len(ids)])

        return call

    def second_pass(rule: tapas.Selection) -> Callable[[], None]:
        batch = GlobalBatch.local(query, target)

        def call() -> None:
            generator = tapas.rng.stream(0, "keep")
            how = SecondPass.draw(batch, pool, pool_size // 8, rule, 1.0, generator=generator)
            table.select(pool, how)

        return call

    with_all, with_few = (
        {str(chunk): floor(queries, chunk) for chunk in CHUNKS} for queries in (num_queries, FEW)
    )
    chunk = {
        "all queries": fastest(with_all, tries=5),
        f"{FEW} queries": fastest(with_few, tries=5),
    }
    return {
        "floor, all queries": with_all[chunk["all queries"]],
        "top, all queries": second_pass(tapas.Top()),
        "priority, all queries": second_pass(tapas.Priority(score_queries=None)),
        f"floor, {FEW} queries": with_few[chunk[f"{FEW} queries"]],
        f"priority, {FEW} queries": second_pass(tapas.Priority(score_queries=FEW)),
    }, chunk


def main() -> None:
    results: dict[str, dict[str, list[float]]] = {}
    chunks, targets = {}, []
    for shape in SHAPES:
        calls, chunks[str(shape)] = contenders(*shape)
        seconds = interleave(calls, repeats=25)
        floor_all, floor_few = seconds["floor, all queries"], seconds[f"floor, {FEW} queries"]
        print(f"\n(B, r*n, D) = {shape}; the floors' chunks: {chunks[str(shape)]}")
        for name, values in seconds.items():
            floor = floor_all if "all" in name else floor_few
            print(
                f"  {name:<32}{spread(values):<28}{ratio(values, floor):<22}of its floor, "
                f"{ratio(values, floor_all)} of that of all queries"
            )
        for rule in ("top", "priority"):
            measure = f"second pass / its floor, {rule}, (B, r*n, D) = {shape}"
            timed = seconds[f"{rule}, all queries"]
            targets.append(ratio_target(measure, timed, floor_all, "at most", 1.15))
        results[str(shape)] = seconds
    write_record(
        "second-pass",
        {"num_classes": NUM_CLASSES, "keep": "pool / 8", "proposal": "uniform", "chunks": chunks},
        {"seconds": results},
        targets=targets,
    )


if __name__ == "__main__":
    main()
