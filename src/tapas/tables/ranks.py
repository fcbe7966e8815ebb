"""The examples that are looked at together, whoever has brought them."""

from dataclasses import dataclass

from torch import Tensor


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
