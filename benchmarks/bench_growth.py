"""How does the time of a head step grow with C, r, n, B and D, for ours and plain PyTorch?

At each point the contenders take turns in one process, on the same batches; slow ones are timed
less often. The sweep over C has D=16, so that 10^8 classes fit into memory. A contender that does
not fit or would take too long is left out, and the record says why. The last two sweeps find the
break-even: the number of classes at which our step becomes faster than a full softmax, by a linear
layer and `cross_entropy` or by `linear_cross_entropy` in chunks, whichever is faster.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from measuring import available_bytes, interleave, quick, ratio_quartiles, spread, write_record
from plain_softmax import (
    CHUNK_ROWS,
    LEARNING_RATE,
    ChunkedFullSoftmax,
    FullSoftmax,
    PlainSampledSoftmax,
)
from torch import Tensor, nn

import tapas

SEEN = 50_000  # classes above the floor of our proposal, at most
BATCHES = 4
SECONDS_EACH = 1.0  # of timing for each contender and point, about
FEWEST, MOST = 3, 25  # repeats
MOST_CLASSES_FULL, MOST_LOGITS_FULL = 10**6, 3 * 10**8  # larger steps take many seconds
PRIORITY, TOP, PLAIN = "TAPAS priority", "TAPAS top", "plain PyTorch"
FULL, CHUNKED = "full softmax", "full softmax in chunks"
Step = Callable[[], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    C: int = 500_000
    D: int = 64
    B: int = 1024
    n: int = 1000
    r: int = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """Steps with the size `letter` set to each of `values`, the other sizes as in `base`."""

    letter: str
    values: tuple[int, ...]
    base: Sizes = Sizes()
    pool_for_plain: bool = False  # plain PyTorch draws r*n classes instead of n

    def points(self) -> list[tuple[int, Sizes]]:
        return [(x, dataclasses.replace(self.base, **{self.letter: x})) for x in self.values]


BREAK_EVEN_CLASSES = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000)
SWEEPS = {
    "C": Sweep(letter="C", values=tuple(10**k for k in range(4, 9)), base=Sizes(D=16, B=256)),
    "r": Sweep(letter="r", values=(1, 2, 4, 8, 16, 32, 64), pool_for_plain=True),
    "n": Sweep(letter="n", values=(100, 300, 1000, 3000, 10_000)),
    "B": Sweep(letter="B", values=(16, 64, 256, 1024, 4096)),
    "D": Sweep(letter="D", values=(16, 32, 64, 128, 256)),
    "break-even, B=64": Sweep(letter="C", values=BREAK_EVEN_CLASSES, base=Sizes(B=64)),
    "break-even, B=1024": Sweep(letter="C", values=BREAK_EVEN_CLASSES, base=Sizes(B=1024)),
}
QUICK_CLASSES = 10**6  # at most, with --quick


def batches(sizes: Sizes) -> list[tuple[Tensor, Tensor]]:
    """Queries (B, D) and targets (B,) with probability about 1 / (id + 1), as in real logs."""
    generator = tapas.rng.stream(0, "batches")
    made = []
    for _ in range(BATCHES):
        query = torch.randn(sizes.B, sizes.D, generator=generator).requires_grad_()
        draws = torch.rand(sizes.B, generator=generator, dtype=torch.float64)
        target = torch.expm1(draws * math.log1p(sizes.C)).long().clamp_(max=sizes.C - 1)
        made.append((query, target))
    return made


def in_turn(update: Callable[[Tensor, Tensor], None], data: list[tuple[Tensor, Tensor]]) -> Step:
    """A function that runs one step, on the next batch with each call."""
    turn = 0

    def step() -> None:
        nonlocal turn
        query, target = data[turn % len(data)]
        query.grad = None
        update(query, target)
        turn += 1

    return step


def ours(sizes: Sizes, data: list[tuple[Tensor, Tensor]]) -> dict[str, Step]:
    """Both rules on one table, because two tables of 10^8 rows would not fit."""
    seen = min(sizes.C, SEEN)
    counts = (10 * SEEN / torch.arange(1, seen + 1)).long() + 1
    options = {
        "table": tapas.LocalTable(
            sizes.C, sizes.D, row_optimizer=tapas.optim.RowwiseAdagrad.fused(lr=LEARNING_RATE)
        ),
        "num_samples": sizes.n,
        "presample_factor": sizes.r,
        "proposal": tapas.Squashed((torch.arange(seen), counts), num_classes=sizes.C, alpha=0.75),
    }
    heads = {
        PRIORITY: tapas.TapasSoftmax(selection="priority", **options),
        TOP: tapas.TapasSoftmax(selection="top", **options),
    }
    return {
        name: in_turn(lambda query, target, head=head: head(query, target).backward(), data)
        for name, head in heads.items()
    }


def by_torch(module: nn.Module, data: list[tuple[Tensor, Tensor]]) -> Step:
    optimizer = torch.optim.Adagrad(module.parameters(), lr=LEARNING_RATE)

    def update(query: Tensor, target: Tensor) -> None:
        optimizer.zero_grad()
        module(query, target).backward()
        optimizer.step()

    return in_turn(update, data)


def contenders(sizes: Sizes, num_plain: int) -> tuple[dict[str, Step], dict[str, str]]:
    """The contenders that run at a point, and why the others do not."""
    data = batches(sizes)
    made: dict[str, Step] = {}
    left_out: dict[str, str] = {}
    table_bytes = 4 * sizes.C * (sizes.D + 1)
    if table_bytes + 8 * sizes.C < 0.8 * available_bytes():
        made |= ours(sizes, data)
    else:
        left_out |= dict.fromkeys((PRIORITY, TOP), "does not fit into memory")
    if 2 * table_bytes < 0.8 * available_bytes():
        plain = PlainSampledSoftmax(sizes.C, sizes.D, num_samples=num_plain)
        made[PLAIN] = by_torch(plain, data)
    else:
        left_out[PLAIN] = "does not fit into memory beside ours"
    for name, module, rows in (
        (FULL, FullSoftmax, sizes.B),
        (CHUNKED, ChunkedFullSoftmax, min(sizes.B, CHUNK_ROWS)),
    ):
        if sizes.C > MOST_CLASSES_FULL or sizes.B * sizes.C > MOST_LOGITS_FULL:
            left_out[name] = "would take too long"
        elif 4 * (table_bytes + 4 * rows * sizes.C) > 0.8 * available_bytes():
            left_out[name] = "does not fit into memory beside ours"
        else:
            made[name] = by_torch(module(sizes.C, sizes.D), data)
    return made, left_out


def repeats(call: Step) -> int:
    """How often to time `call`; the call that decides it is the warm-up."""
    call()
    start = time.perf_counter()
    call()
    return min(MOST, max(FEWEST, int(SECONDS_EACH / (time.perf_counter() - start))))


def measure(sweep: Sweep) -> list[dict[str, object]]:
    return [
        measure_point(sweep, x, sizes)
        for x, sizes in sweep.points()
        if not quick() or sizes.C <= QUICK_CLASSES
    ]


def measure_point(sweep: Sweep, x: int, sizes: Sizes) -> dict[str, object]:
    """A separate function, so that its tables are freed before the next ones are built."""
    made, left_out = contenders(sizes, sizes.n * (sizes.r if sweep.pool_for_plain else 1))
    seconds = interleave(made, repeats={n: repeats(s) for n, s in made.items()}, warmup=0)
    lines = {name: spread(values) for name, values in seconds.items()} | left_out
    for name, text in lines.items():
        print(f"  {sweep.letter} = {x:<12,}{name:<24}{text}")
    return {"x": x, "seconds": seconds, "left_out": left_out}


def crossing(x: Sequence[float], ratios: Sequence[float]) -> float | None:
    """Where `ratios` first rises through 1, interpolated linearly in log-log, or None.

    >>> round(crossing([10, 1000], [0.1, 10.0]))
    100
    """
    for i in range(1, len(x)):
        below, above = math.log(ratios[i - 1]), math.log(ratios[i])
        if below < 0 <= above:
            part = below / (below - above)
            return math.exp(math.log(x[i - 1]) + part * math.log(x[i] / x[i - 1]))
    return None


def fastest_full(seconds: dict[str, list[float]]) -> list[float]:
    """The times of the full softmax with the lower median."""
    return min((seconds[n] for n in (FULL, CHUNKED) if n in seconds), key=statistics.median)


def break_even(points: list[dict[str, object]]) -> dict[str, float | None]:
    """Number of classes from which full / ours is above 1, by the median and both quartiles.

    The full softmax is the faster one of those that were timed at a point.
    `low` comes from the third quartile of the ratio, `high` from the first. None means outside
    the measured range: below it if `first_ratio` is above 1, beyond it otherwise.
    """
    x = [point["x"] for point in points]
    found = [
        ratio_quartiles(fastest_full(point["seconds"]), point["seconds"][PRIORITY])
        for point in points
    ]
    middle, high, low = (crossing(x, column) for column in zip(*found, strict=True))
    return {
        "classes": middle,
        "low": low,
        "high": high,
        "from": x[0],
        "to": x[-1],
        "first_ratio": found[0][0],
    }


def main() -> None:
    torch.sparse.check_sparse_tensor_invariants.disable()  # otherwise Adagrad prints a warning
    start = time.perf_counter()
    sweeps, even = {}, {}
    for name, sweep in SWEEPS.items():
        print(f"\n{name}: {sweep.base}")
        points = measure(sweep)
        fixed = {k: v for k, v in dataclasses.asdict(sweep.base).items() if k != sweep.letter}
        sweeps[name] = {
            "letter": sweep.letter,
            "fixed": fixed,
            "plain_draws": "r*n" if sweep.pool_for_plain else "n",
            "points": points,
        }
        if name.startswith("break-even"):
            even[str(sweep.base.B)] = break_even(points)
            print(f"  break-even against the full softmax: {even[str(sweep.base.B)]}")
    medians = {
        name: [
            {k: statistics.median(v) for k, v in point["seconds"].items()}
            for point in sweep["points"]
        ]
        for name, sweep in sweeps.items()
    }
    print(f"\n{time.perf_counter() - start:.0f} s")
    write_record(
        "growth",
        {
            "seen": SEEN,
            "optimizer": "Adagrad (ours row-wise)",
            "contenders": [PRIORITY, TOP, PLAIN, FULL, CHUNKED],
        },
        {"sweeps": sweeps, "median_step_seconds": medians, "break_even": even},
    )


if __name__ == "__main__":
    main()
