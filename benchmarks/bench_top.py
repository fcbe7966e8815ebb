"""How far are exact answers over all classes from their floor?  1,000 queries, C=10^6, D=64.

`LocalTable.topk` (the 20 best of all classes) and `log_partition` against the bare matrix product
into a scratch block, in chunks of the fastest of a few sizes. Target: the top
20 take at most 1.3 times the product.
"""

from collections.abc import Callable

import torch
from measuring import fastest, interleave, quick, ratio, ratio_target, spread, write_record

import tapas

B, C, D, K = 1000, 10**6, 64, 20
SHAPES = [(256, 2048), (256, 8192), (256, 32768), (B, 512), (B, 2048), (B, 8192)]


def product(
    table: tapas.LocalTable, query: torch.Tensor, shape: tuple[int, int], num_classes: int
) -> Callable[[], None]:
    """Scores the first `num_classes`, `shape` = (queries, classes) at a time."""
    queries, classes = shape
    scratch = torch.empty(queries * classes)

    def call() -> None:
        for first in range(0, len(query), queries):
            part = query[first : first + queries]
            for start in range(0, num_classes, classes):
                stop = min(start + classes, num_classes)
                block = scratch[: len(part) * (stop - start)].view(len(part), stop - start)
                weight = table.weight[start:stop].t()
                torch.addmm(table.bias[start:stop], part, weight, out=block)

    return call


def main() -> None:
    table = tapas.LocalTable(C, D, row_optimizer=tapas.optim.SGD.fused())
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "query"))
    tried = {str(shape): product(table, query, shape, C // 8) for shape in SHAPES}
    shape = SHAPES[list(tried).index(fastest(tried))]
    seconds = interleave(
        {
            "product": product(table, query, shape, C),
            f"top {K}": lambda: table.topk(query, K),
            "log partition": lambda: table.log_partition(query),
        },
        repeats=1 if quick() else 5,
        warmup=1,
    )
    print(f"the product works on {shape[0]} queries and {shape[1]} classes at a time")
    for name, values in seconds.items():
        print(f"{name:<15}{spread(values):<32}{ratio(values, seconds['product'])} of the product")
    write_record(
        "top",
        {"B": B, "C": C, "D": D, "k": K, "floor_queries": shape[0], "floor_classes": shape[1]},
        {"seconds": seconds},
        targets=[
            ratio_target(
                f"exact top {K} of all classes / bare matrix product",
                seconds[f"top {K}"],
                seconds["product"],
                "at most",
                1.3,
            )
        ],
    )


if __name__ == "__main__":
    main()
