"""Fitting the counting parts of a model to its validation points."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints
from tapas.evaluation.ranked_lists import ListOptions, excluded_at, histories_at
from tapas.heads import FlatHead
from tapas.mixture import SCALES, Mixture, Past, Targets, Watched, fit_parts, fit_shares
from tapas.mixture.softmax_part import logits_of
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.training.model import SequenceModel

PART_POINTS = 500  # that the numbers of the parts are fitted to
MOST_POINTS = 2_000  # that shares are fitted to
SCORES = 1 << 29  # of all classes at these points, of large vocabularies fewer points
AT_ONCE = 256  # histories


class MixtureFit:
    """Fits the mixture of a model at `points` of a log, whose next items are `target` (P, L).

    The points are a random sample, in any order, that trained neither rows nor counts.
    """

    def __init__(
        self,
        log: EventLog,
        points: EvalPoints,
        target: NDArray[np.int64],
        options: ListOptions,
        *,
        train_counts: NDArray[np.int64],
        ranks: Ranks = ONE_PROCESS,
    ):
        most = min(MOST_POINTS, max(PART_POINTS, SCORES // len(train_counts)))
        chosen = np.linspace(0, len(points) - 1, min(most, len(points))).astype(np.int64)
        self.log, self.options, self.ranks = log, options, ranks
        self.points, self.target = points[chosen], target[chosen]
        self.train_counts = train_counts
        self._known: tuple[Mixture, Targets] | None = None  # whose parts are fitted

    def fit(self, model: SequenceModel) -> float:
        """Fit the mixture of `model` to its present softmax; returns the mean loss of targets."""
        mixture = model.mixture
        if mixture is None:
            raise ValueError("the model has no counting parts")
        if self._known is None or self._known[0] is not mixture:
            self._known = mixture, self._fit_parts(mixture)
        logit, partition = self._softmax(model)
        return fit_shares(mixture, self._known[1], logit, partition)

    def _fit_parts(self, mixture: Mixture) -> Targets:
        size = len(self.points)
        few = np.unique(np.linspace(0, size - 1, min(PART_POINTS, size)).astype(np.int64))
        popularity = torch.from_numpy(self.train_counts).double() + 0.5
        fit_parts(mixture, self._watch(mixture, few), (popularity / popularity.sum()).log())
        return Targets.join(
            [
                self._watch(mixture, np.arange(first, min(first + AT_ONCE, size))).targets(mixture)
                for first in range(0, size, AT_ONCE)
            ]
        )

    def _watch(self, mixture: Mixture, chosen: NDArray[np.int64]) -> Watched:
        past, exclude = self._past(chosen)
        return Watched.of(mixture, Past.of(*past), torch.from_numpy(self.target[chosen]), exclude)

    def _past(
        self, chosen: NDArray[np.int64]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
        points = self.points[chosen]
        start = np.asarray(self.log.offsets)[points.user]
        past = histories_at(self.log, start, points.point, self.options.history)
        return past, excluded_at(self.log, start, points.point, self.options)

    def _softmax(self, model: SequenceModel) -> tuple[Tensor, Tensor | None]:
        """Logits (P, L) of the targets and log partitions (P, S), or log-probabilities and None."""
        size, parts, head = len(self.points), [], model.head
        for first in range(0, size, 4 * AT_ONCE):
            last = min(first + 4 * AT_ONCE, size)
            begin, end = self.ranks.local_range(last - first)
            mine = np.arange(first + begin, first + end)
            (items, lengths, age), _ = self._past(mine)
            query = model.predict(items, lengths, age).query
            ids = torch.from_numpy(self.target[mine]).clamp(min=0).to(query.device)
            if isinstance(head, FlatHead):
                sums = [head.table.log_partition(query, scale=scale) for scale in SCALES]
                found = torch.cat(
                    [logits_of(head.table, query, ids), torch.stack(sums, dim=1)], dim=1
                )
            else:
                found = head.log_prob(query, ids)
            parts.append(self.ranks.gather_rows(found, self.ranks.local_sizes(last - first)))
        values = torch.cat(parts).cpu()
        if not isinstance(head, FlatHead):
            return values, None
        return values[:, : -len(SCALES)], values[:, -len(SCALES) :]
