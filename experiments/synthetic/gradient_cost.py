"""What a kept class costs: the gradient part of a step with n=128 and with n=512.

The paper: "n=128, r=4 ... is 4 times faster in the gradient computation" than n=512, r=1.
Timed here is what only the kept classes cause, at figure 2's sizes (B=32, D=50, C=10,000):
logits, loss and its backward pass with the row update, without either sampling pass.
"""

import statistics
import time

import torch

from tapas.losses import sampled_softmax_loss
from tapas.optim import Adagrad
from tapas.proposals import Uniform
from tapas.rng import stream
from tapas.tables import LocalTable
from tapas.tables.ranks import GlobalBatch

BATCH, DIM, NUM_CLASSES = 32, 50, 10_000


def gradient_cost(repeats: int = 400, warmup: int = 50) -> dict[str, float]:
    """Median seconds of either, taken in turns on one thread, and their ratio."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        table = LocalTable(NUM_CLASSES, DIM, row_optimizer=Adagrad.fused())
        query = torch.randn(BATCH, DIM, generator=stream(0, "query")).requires_grad_()
        target = torch.randint(NUM_CLASSES, (BATCH, 1), generator=stream(0, "target"))
        batch = GlobalBatch.local(query, target)
        kept = {
            n: Uniform(NUM_CLASSES).sample(n, generator=stream(0, "kept", n)) for n in (128, 512)
        }
        seconds: dict[int, list[float]] = {n: [] for n in kept}
        for turn in range(warmup + repeats):
            for n, candidates in kept.items():
                start = time.perf_counter()
                positive, log_sum = table.sampled_logits(batch, candidates)
                torch.autograd.backward(sampled_softmax_loss(positive, log_sum).mean())
                if turn >= warmup:
                    seconds[n].append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    few, many = (statistics.median(seconds[n]) for n in (128, 512))
    return {"seconds_n_128": few, "seconds_n_512": many, "ratio": many / few}
