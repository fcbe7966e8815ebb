"""The processes that share tables, and the examples that they look at together."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

if TYPE_CHECKING:
    from tapas.optim.gradient_queue import GradientQueue

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """Examples that are looked at together: those of this process, or of all ranks in turn."""

    query: Tensor  # (G, D) float32; `backward` returns gradients to the rank of each query
    target: Tensor  # (G, L) int64; negative is padding
    context: Tensor | None  # (G,) previous class of each example
    sizes: tuple[int, ...]  # examples of each rank; they sum to G
    num_targets: int  # of the examples of this process; L is the most of any rank

    @staticmethod
    def local(query: Tensor, target: Tensor, context: Tensor | None = None) -> "GlobalBatch":
        """The examples of one process, whose rows are all in it."""
        return GlobalBatch(query, target, context, (len(query),), target.shape[1])

    @property
    def mean_size(self) -> float:
        """Divide a rank's summed loss by it: the mean over ranks is that over all examples."""
        return sum(self.sizes) / len(self.sizes)


class Ranks:
    """The processes that share tables and make every call below together; here only this one.

    `tapas.distributed.collectives.GroupRanks` is the same for those of torch.distributed.
    """

    is_distributed: bool = False  # whether torch.distributed runs them, even if it is only one
    rank: int = 0
    size: int = 1
    last_checkpoint: str | None = None  # what an error offers to go on from

    @property
    def is_main(self) -> bool:
        """Whether this process prints, and writes what is written once."""
        return self.rank == 0

    def local_range(self, size: int) -> tuple[int, int]:
        """Which of `size` things are this rank's to work on: parts differ by at most one."""
        return self.rank * size // self.size, (self.rank + 1) * size // self.size

    def local_sizes(self, size: int) -> list[int]:
        """How many of them each rank has."""
        ends = [(rank + 1) * size // self.size for rank in range(self.size)]
        return [end - start for start, end in zip([0, *ends], ends, strict=False)]

    def batch(
        self,
        query: Tensor,
        target: Tensor,
        context: Tensor | None = None,
        *,
        step: int = 0,
        gradients: "GradientQueue | None" = None,
    ) -> GlobalBatch:
        """The examples of all ranks: `query` (B, D), `target` (B, L), `context` (B,) are its own.

        B and L may differ from rank to rank. All must be at the same `step`, and agree on whether
        rows whose gradients go to `gradients` are trained.
        """
        return GlobalBatch.local(query, target, context)

    def share_errors(self) -> AbstractContextManager[None]:
        """Errors raised inside are sent to the other ranks, so that none waits for ever.

        Once a collective has been made inside, they are no longer sent.
        """
        return nullcontext()

    def check_equal(self, what: str, value: object) -> None:
        """An error if ranks differ in `value`, whose `repr` is compared."""

    def mean(self, number: int) -> float:
        """The mean over ranks of `number`."""
        return number

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of `tensor` (N,) over all ranks, the same bits on each."""
        return tensor

    def sum_numbers(self, *numbers: float) -> list[float]:
        """Each number summed over ranks."""
        return list(numbers)

    def gather_numbers(self, operation: str, *numbers: int) -> list[list[int]]:
        """The `numbers` of every rank; an error if they are not all at the same `operation`."""
        return [list(numbers)]

    def gather_json(self, operation: str, value: Any) -> list[Any]:
        """The `value` of every rank, by rank; anything that JSON can hold."""
        return [value]

    def gather_rows(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """(sum of sizes, ...) the `rows` (sizes[rank], ...) of all ranks, in turn."""
        return rows

    def main_first(self, what: str, work: Callable[[], T]) -> T:
        """`work()` on rank 0, then on all others, however long the first takes."""
        return work()


ONE_PROCESS = Ranks()
