"""`Ranks`: the processes that share tables; `GlobalBatch`: their examples in a step."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

if TYPE_CHECKING:
    from tapas.optim.gradient_queue import GradientQueue

T = TypeVar("T")
_NOTHING = nullcontext()


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """The examples of all ranks in a step, in the order of ranks."""

    query: Tensor  # (G, D) float32; `backward` sends gradients to the rank of each query
    target: Tensor  # (G, L) int64; negative is padding
    context: Tensor | None  # (G,) previous class of each example
    sizes: tuple[int, ...]  # number of examples of each rank; sums to G
    num_targets: int  # targets of each example of this rank; L is the largest of all ranks

    @staticmethod
    def local(query: Tensor, target: Tensor, context: Tensor | None = None) -> "GlobalBatch":
        """The batch of a single process."""
        return GlobalBatch(query, target, context, (len(query),), target.shape[1])

    @property
    def mean_size(self) -> float:
        """Mean examples per rank; a rank's summed loss is divided by it.

        So the mean of the losses of ranks is the mean over all examples.
        """
        return sum(self.sizes) / len(self.sizes)


class Ranks:
    """The processes that share tables; this class is for a single process.

    `tapas.distributed.collectives.GroupRanks` is the subclass for torch.distributed. All its
    methods that exchange something are collective: all ranks must call them in the same order.
    """

    is_distributed: bool = False  # whether torch.distributed runs them, even if it is only one
    rank: int = 0
    size: int = 1
    last_checkpoint: str | None = None  # named in errors

    @property
    def is_main(self) -> bool:
        """Whether this process is rank 0, which prints and writes shared files."""
        return self.rank == 0

    def local_range(self, size: int) -> tuple[int, int]:
        """Start and stop of this rank's share of `size` items; shares differ by at most one."""
        return self.rank * size // self.size, (self.rank + 1) * size // self.size

    def local_sizes(self, size: int) -> list[int]:
        """The number of items in `local_range` of each rank."""
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
        """The examples of all ranks, given `query` (B, D), `target` (B, L) and `context` (B,).

        B and L may differ between ranks. `step`, and whether the rows of `gradients` are trained,
        must be equal.
        """
        return GlobalBatch.local(query, target, context)

    def share_errors(self) -> AbstractContextManager[None]:
        """Errors raised inside are sent to the other ranks, so that none waits for ever.

        Only errors before the first collective inside are sent.
        """
        return _NOTHING

    def check_equal(self, what: str, value: object) -> None:
        """Raise PeerError if ranks differ in the `repr` of `value`."""

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
        """The `numbers` of every rank. Raises PeerError if ranks differ in `operation`."""
        return [list(numbers)]

    def gather_json(self, operation: str, value: Any) -> list[Any]:
        """The JSON `value` of every rank, by rank."""
        return [value]

    def gather_rows(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """The `rows` (sizes[rank], ...) of all ranks in one tensor, in the order of ranks."""
        return rows

    def main_first(self, what: str, work: Callable[[], T]) -> T:
        """Run `work()` on rank 0, then on the other ranks, without a time limit.

        A UsageError or DataError of rank 0 is raised on all ranks.
        """
        return work()


ONE_PROCESS = Ranks()
