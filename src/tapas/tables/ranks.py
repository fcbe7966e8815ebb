"""Processes that share tables, and the examples that they look at together."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class RankGroup(Protocol):
    """Processes that make the same calls in the same order; `size` of them, this is `rank`."""

    rank: int
    size: int
    last_checkpoint: str | None  # what an error offers to go on from

    def together(self) -> AbstractContextManager[None]:
        """Errors inside, before the first call below, are sent to the others, so that none waits
        for ever."""
        ...

    def announce(self, verb: str, *numbers: int) -> list[list[int]]:
        """The `numbers` of every rank; an error if they are not all at the same `verb`."""
        ...

    def share(self, verb: str, value: Any) -> list[Any]:
        """The `value` of every rank, by rank; anything that JSON can hold."""
        ...


class OneProcess:
    """A group of one."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.last_checkpoint: str | None = None

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def announce(self, verb: str, *numbers: int) -> list[list[int]]:
        return [list(numbers)]

    def share(self, verb: str, value: Any) -> list[Any]:
        return [value]


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """Examples that are looked at together: those of this process, or of all ranks in turn."""

    query: Tensor  # (G, D) float32
    target: Tensor  # (G, L) int64; negative is padding
    context: Tensor | None  # (G,) previous class of each example
    sizes: tuple[int, ...]  # examples of each rank; they sum to G
    num_targets: int  # of the examples of this process; L is the most of any rank

    @property
    def mean_size(self) -> float:
        """Divide a rank's summed loss by it: the mean over ranks is that over all examples."""
        return sum(self.sizes) / len(self.sizes)
