"""The ranks that train one model together; a single process is a team of one."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from tapas.data.windows import SequenceBatch
from tapas.distributed.collectives import GroupRanks

T = TypeVar("T")


class Team:
    """Every rank makes the same calls; each sees its part of every batch."""

    def __init__(self, ranks: GroupRanks | None = None):
        self.ranks = ranks
        self.rank, self.size = (0, 1) if ranks is None else (ranks.rank, ranks.size)

    @property
    def leads(self) -> bool:
        """Whether this process talks, and writes what is written once."""
        return self.rank == 0

    def in_turn(self, what: str, work: Callable[[], T]) -> T:
        """`work()`, first where it may write, then where that is read."""
        return work() if self.ranks is None else self.ranks.main_first(what, work)

    def bounds(self, size: int) -> tuple[int, int]:
        """Which of `size` things are this rank's: stretches that differ by at most one."""
        return self._bounds(self.rank, size)

    def sizes(self, size: int) -> list[int]:
        """How many of them each rank has."""
        return [last - first for first, last in (self._bounds(r, size) for r in range(self.size))]

    def _bounds(self, rank: int, size: int) -> tuple[int, int]:
        return rank * size // self.size, (rank + 1) * size // self.size

    def part(self, batch: SequenceBatch) -> SequenceBatch:
        """This rank's histories of `batch`, which may be none."""
        if self.ranks is None:
            return batch
        width = batch.items.shape[1]
        first, last = self.bounds(len(batch.items))
        mine = (batch.places >= first * width) & (batch.places < last * width)
        return SequenceBatch(
            items=batch.items[first:last],
            lengths=batch.lengths[first:last],
            places=batch.places[mine] - first * width,
            target=batch.target[mine],
        )

    def sum(self, *numbers: float) -> list[float]:
        """Each number summed over ranks."""
        if self.ranks is None:
            return list(numbers)
        return self.ranks.sum_numbers(*numbers)

    def average_gradients(self, parameters: Iterable[nn.Parameter], number: float) -> float:
        """As DistributedDataParallel, and the mean of `number`; without examples both are 0."""
        if self.ranks is None:
            return number
        learned = [p for p in parameters if p.requires_grad]
        for parameter in learned:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        grads = [p.grad for p in learned if p.grad is not None]
        beside = grads[0].new_tensor([number])
        flat = torch.cat([*(grad.reshape(-1) for grad in grads), beside])
        flat = self.ranks.sum(flat).div_(self.size)
        *parts, mean = torch.split(flat, [*(grad.numel() for grad in grads), 1])
        for grad, part in zip(grads, parts, strict=True):
            grad.copy_(part.view_as(grad))
        return float(mean)

    def collect(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """(sum of sizes, ...) the `rows` (sizes[rank], ...) of all ranks, in turn."""
        if self.ranks is None:
            return rows
        return self.ranks.gather_rows(rows.to(self.ranks.device), sizes).to(rows.device)
