"""Steps of bench_surface.py in torch: ours, plain PyTorch and the floor, on tables of one D.

A contender is a function from a number of steps to the seconds of each.
"""

import time
from collections.abc import Callable

import torch
from peers.contender import Sizes, make_batches
from plain_softmax import PlainSampledSoftmax
from surface_grid import FLOOR, LARGE, ONE, PLAIN, TWO, C, Cell, R
from torch import Tensor

import tapas

SEEN = 50_000  # classes with counts, above the floor of our proposal
LEARNING_RATE = 0.001  # so small that rows, and with them logits, are alike in all cells
LARGE_QUERY = 30  # times as long, for logits with a standard deviation of 17
WITH_LARGE_LOGITS = ((1024, 64, 1000), (1024, 256, 1000), (32, 512, 1000))
Update = Callable[[Tensor, Tensor], object]
Timed = Callable[[int], list[float]]


def timed(update: Update, data: list[tuple[Tensor, Tensor]]) -> Timed:
    """Runs `update` on the next batches; the gradients of queries are dropped before."""
    turn = 0

    def run(count: int) -> list[float]:
        nonlocal turn
        seconds = []
        for _ in range(count):
            query, target = data[turn % len(data)]
            query.grad = None
            start = time.perf_counter()
            update(query, target)
            seconds.append(time.perf_counter() - start)
            turn += 1
        return seconds

    return run


class Tables:
    """The tables of all contenders for one D: drawn rows of one never warm the caches of another.

    At D = 512 they take 5 GB.
    """

    def __init__(self, dim: int, num_classes: int = C):
        self.dim, self.num_classes = dim, num_classes
        seen = min(SEEN, num_classes)
        counts = (10 * seen / torch.arange(1, seen + 1)).long() + 1
        self.proposal = tapas.Squashed(
            (torch.arange(seen), counts), num_classes=num_classes, alpha=0.75
        )
        self.ours = {r: tapas.LocalTable(num_classes, dim) for r in (1, R)}
        self.row_optimizers = {
            r: tapas.optim.RowwiseAdagrad(table, lr=LEARNING_RATE) for r, table in self.ours.items()
        }
        self.plain = PlainSampledSoftmax(num_classes, dim, num_samples=1)
        self.adagrad = torch.optim.Adagrad(self.plain.parameters(), lr=LEARNING_RATE)
        self.bare = self.plain.weight.weight.detach().clone()

    def contenders(self, cell: Cell) -> dict[str, Timed]:
        """All contenders of torch, on the same batches."""
        made = make_batches(Sizes(num_classes=self.num_classes, dim=self.dim, batch=cell.B))
        data = [(torch.from_numpy(q).requires_grad_(), torch.from_numpy(t)) for q, t in made]
        found = {
            ONE: timed(self.head_update(cell.n, 1), data),
            TWO: timed(self.head_update(cell.n, R), data),
            PLAIN: timed(self.plain_update(cell.n), data),
            FLOOR: timed(self.floor_update(cell), data),
        }
        if cell[1:] in WITH_LARGE_LOGITS:
            large = [((LARGE_QUERY * q).detach().requires_grad_(), target) for q, target in data]
            found[LARGE] = timed(self.head_update(cell.n, 1), large)
        return found

    def head_update(self, num_samples: int, presample_factor: int) -> Update:
        optimizer = self.row_optimizers[presample_factor]
        head = tapas.TapasSoftmax(
            table=self.ours[presample_factor],
            num_samples=num_samples,
            presample_factor=presample_factor,
            selection="priority",
            proposal=self.proposal,
        )

        def update(query: Tensor, target: Tensor) -> None:
            optimizer.zero_grad()
            head(query, target).backward()
            optimizer.step()

        return update

    def plain_update(self, num_samples: int) -> Update:
        def update(query: Tensor, target: Tensor) -> None:
            self.plain.num_samples = num_samples
            self.adagrad.zero_grad()
            self.plain(query, target).backward()
            self.adagrad.step()

        return update

    def floor_update(self, cell: Cell) -> Update:
        """Reads of the B + n rows and the three matrix products of a step, nothing else.

        Memory for the results is there, no row moves, and ids are known.
        """
        batch, num_samples, dim = cell.B, cell.n, self.dim
        drawn = [
            self.proposal.sample(num_samples, generator=tapas.rng.stream(0, "floor", i)).ids
            for i in range(4)
        ]
        rows = torch.empty(batch + num_samples, dim)
        logits = torch.empty(batch, num_samples)
        row_grad, query_grad = torch.empty(num_samples, dim), torch.empty(batch, dim)
        kept = rows[batch:]
        turn = 0

        def update(query: Tensor, target: Tensor) -> None:
            nonlocal turn
            turn += 1
            query = query.detach()
            torch.index_select(self.bare, 0, target, out=rows[:batch])
            torch.index_select(self.bare, 0, drawn[turn % len(drawn)], out=kept)
            torch.mm(query, kept.t(), out=logits)
            torch.mm(logits.t(), query, out=row_grad)
            torch.mm(logits, kept, out=query_grad)

        return update
