"""How is a full softmax best written today?  C = 10^4 to 500,000, B = 64 to 1024, D=64.

A step is loss, gradients of queries and rows, and update of the rows. Contenders: a linear layer
and `cross_entropy`, which is what torch's `linear_cross_entropy` does without options; the same
function in chunks of the batch, chosen by torch or of a fixed size; all with torch's Adagrad; and
our `full` head, whose rows have the row-wise Adagrad of the README. All compute the same loss. Peak
memory is beyond parameters and state of the optimizer. The rows of ours have a smaller state, which
makes their update faster. Points may be passed as CxB: `bench_full.py 10000x64`.
"""

import statistics
import time
from collections.abc import Callable

import torch
from measuring import arguments, interleave, peak_bytes, quick, ratio, spread, write_record
from plain_softmax import LEARNING_RATE, ChunkedFullSoftmax, FullSoftmax, start_rows
from torch import Tensor

import tapas

CLASSES, BATCHES, D = (10_000, 100_000, 500_000), (64, 256, 1024), 64
SECONDS_EACH, FEWEST, MOST = 3.0, 3, 25
MOST_LOGITS = 150_000_000  # for chunks of one example, which torch chooses: many seconds a step
PLAIN, OURS = "linear and cross_entropy", "ours"
CHUNKS = {  # examples of a chunk
    "linear_cross_entropy, chunks chosen by torch": None,
    "linear_cross_entropy, chunks of 64": 64,
    "linear_cross_entropy, chunks of 256": 256,
    "linear_cross_entropy, chunks of 1024": 1024,
}
Step = Callable[[], float]


def by_torch(module: torch.nn.Module, query: Tensor, target: Tensor) -> Step:
    optimizer = torch.optim.Adagrad(module.parameters(), lr=LEARNING_RATE)

    def step() -> float:
        query.grad = None
        optimizer.zero_grad()
        loss = module(query, target)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def ours(num_classes: int, query: Tensor, target: Tensor) -> Step:
    rows = start_rows(num_classes, D, torch.Generator().manual_seed(0))
    head = tapas.heads.FullSoftmax.from_rows(rows)
    optimizer = tapas.optim.RowwiseAdagrad(head, lr=LEARNING_RATE)

    def step() -> float:
        query.grad = None
        optimizer.zero_grad()
        loss = head(query, target)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def contenders(num_classes: int, size: int) -> dict[str, Step]:
    draw = torch.Generator().manual_seed(1)
    query = torch.randn(size, D, generator=draw).requires_grad_()
    target = torch.randint(num_classes, (size,), generator=draw)
    made = {PLAIN: FullSoftmax(num_classes, D)}
    for name, rows in CHUNKS.items():
        too_long = rows is None and size * num_classes > MOST_LOGITS
        if not too_long and (rows is None or rows <= size):
            made[name] = ChunkedFullSoftmax(num_classes, D, rows=rows)
    steps = {name: by_torch(module, query, target) for name, module in made.items()}
    return steps | {OURS: ours(num_classes, query, target)}


def measure(num_classes: int, size: int) -> dict[str, object]:
    made = contenders(num_classes, size)
    first = {name: step() for name, step in made.items()}  # rows are still the same
    if max(first.values()) - min(first.values()) > 1e-4:
        raise SystemExit(f"the contenders disagree in the loss: {first}")
    peak = {name: peak_bytes(step) for name, step in made.items()}
    repeats = {}
    for name, step in made.items():
        start = time.perf_counter()
        step()
        fit = int(SECONDS_EACH / (time.perf_counter() - start))
        repeats[name] = min(MOST, max(FEWEST, fit))
    seconds = interleave(made, repeats=repeats, warmup=0)
    for name, values in seconds.items():
        print(
            f"C={num_classes:<9,}B={size:<6}{name:<46}{spread(values):<34}"
            f"{ratio(values, seconds[PLAIN])} of plain  {peak[name] / 1e6:,.0f} MB"
        )
    return {"seconds": seconds, "peak_bytes": peak}


def main() -> None:
    sizes = BATCHES[:2] if quick() else BATCHES
    points = [tuple(map(int, word.split("x"))) for word in arguments()]
    points = points or [(c, b) for c in CLASSES for b in sizes]
    found = {f"C={c:,}, B={b:,}": measure(c, b) for c, b in points}
    for name, point in found.items():
        times = {who: statistics.median(taken) for who, taken in point["seconds"].items()}
        print(f"{name}: fastest is {min(times, key=times.get)}")
    write_record("full", {"D": D, "optimizer": "Adagrad (ours row-wise)"}, found)


if __name__ == "__main__":
    main()
