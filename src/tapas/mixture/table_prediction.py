"""What a class table and perhaps counting parts predict, exactly."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tapas.mixture import softmax_part
from tapas.mixture.mixture import Mixed, Mixture
from tapas.mixture.past import Past
from tapas.tables import ClassTable


@dataclass(frozen=True, slots=True)
class TablePrediction:
    """The distribution over the classes of `table` after each of B histories.

    `past` is what the counting parts of `mixture` read of the histories.
    """

    table: ClassTable
    query: Tensor  # (B, D)
    mixture: Mixture | None = None
    past: Past | None = None

    @property
    def part_names(self) -> tuple[str, ...]:
        """The parts of the model: the softmax, and the counting parts that it has."""
        return ("softmax", *(() if self.mixture is None else self.mixture.names))

    def topk(self, k: int, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores and ids (B, k) of the k best classes without those in `exclude` (B, E).

        Scores are logits, or log-probabilities with counting parts.
        """
        if self.mixture is None:
            return self.table.topk(self.query, k, exclude=exclude)
        return self.topk_log_prob(k, exclude)

    def topk_log_prob(self, k: int, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`topk` with log-probabilities instead of scores."""
        if self.mixture is None or self.past is None:
            return self.table.topk_log_prob(self.query, k, exclude=exclude)
        return self.mixture.topk(self.table, self.query, self.past, k, exclude)

    def topk_and_log_prob(
        self, k: int, ids: Tensor, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The ids (B, k) of `topk`, and log-probabilities (B, L) of `ids` (B, L)."""
        best, log_prob = softmax_part.best_classes(self.table, self.query, k, exclude, self._scale)
        softmax = log_prob(ids)
        if self.mixture is None or self.past is None:
            return best, softmax
        mixed: Mixed = self.mixture(self.past, exclude).to(self.query.device)
        _, best = mixed.topk(best, log_prob)
        return best, mixed.log_prob(softmax, ids.to(softmax.device))

    def contributions(self, ids: Tensor, exclude: Tensor | None = None) -> Tensor:
        """What each part adds to the probabilities of `ids` (B, L): (B, L, parts), on the CPU.

        Negative ids are padding.
        """
        if self.mixture is None or self.past is None:
            return torch.ones(*ids.shape, 1, dtype=torch.float64)
        ids = ids.clamp(min=0)
        softmax = softmax_part.log_prob_of(self.table, self.query, ids, self._scale)
        return self.mixture.contributions(self.past, ids, softmax, exclude)

    @property
    def _scale(self) -> float:
        return 1.0 if self.mixture is None else float(self.mixture.scale)
