"""Exact ranked lists and full softmax losses of a model at the points of a split."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints
from tapas.data.windows import gather_histories
from tapas.evaluation.scores import LIST_LENGTH, metrics_per_example
from tapas.tables.ranks import ONE_PROCESS, Ranks

QUERIES_AT_ONCE = 256
Integers = NDArray[np.integer]


class Prediction(Protocol):
    """What a model says of the next item of B histories."""

    @property
    def num_classes(self) -> int: ...

    def topk(self, k: int, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores and ids (B, k) of the best, exact; `exclude` (B, E), negative is padding."""

    def log_prob(self, ids: Tensor) -> Tensor:
        """Exact log-probabilities of `ids` (B, L)."""


class Predictor(Protocol):
    """A model that can be evaluated."""

    def predict(self, items: Tensor, lengths: Tensor) -> Prediction:
        """Of histories `items` (B, H), the last `lengths` (B,) of which are real."""


@dataclass(frozen=True, slots=True)
class ListRules:
    """What a list may hold, and how much of a history a model is shown."""

    history: int
    exclude_seen: bool = False
    excluded_class: int | None = None  # that is no item, such as all rare ones folded into one


@torch.no_grad()
def ranked_lists(
    model: Predictor,
    log: EventLog,
    points: EvalPoints,
    target: NDArray[np.int64],
    rules: ListRules,
    *,
    with_loss: bool = True,
    on_progress: Callable[[int], None] = lambda done: None,
    ranks: Ranks = ONE_PROCESS,
) -> tuple[Tensor, Tensor | None]:
    """The 20 best items at each of `points`, (P, 20), and the loss of `target` (P, L).

    -1 fills lists that run out of items. The loss is over all classes, in nats, the mean over an
    example's targets, NaN without any.
    """
    start, point, items = np.asarray(log.offsets)[points.user], points.point, log.items
    lists, losses = [], []
    for first in range(0, len(points), QUERIES_AT_ONCE):
        size = min(QUERIES_AT_ONCE, len(points) - first)
        part = slice(*(first + bound for bound in ranks.local_range(size)))
        recent, lengths, _ = gather_histories(items, start[part], point[part], rules.history)
        after = model.predict(torch.from_numpy(recent), torch.from_numpy(lengths))
        seen: Tensor | None = None
        barred = [] if rules.excluded_class is None else [np.array([rules.excluded_class])]
        if rules.exclude_seen:
            pairs = zip(start[part], point[part], strict=True)
            seen = pad([np.concatenate([np.unique(items[s:p]), *barred]) for s, p in pairs])
        elif barred:
            seen = pad(barred * len(recent))
        sizes = ranks.local_sizes(size)
        lists.append(ranks.gather_rows(top_padded(after, LIST_LENGTH, seen), sizes))
        if with_loss:
            losses.append(ranks.gather_rows(_loss(after, torch.from_numpy(target[part])), sizes))
        on_progress(first + size)
    return torch.cat(lists), torch.cat(losses) if with_loss else None


def top_padded(after: Prediction, k: int, seen: Tensor | None) -> Tensor:
    """(B, k) best ids, also where there are fewer than k classes."""
    _, ids = after.topk(min(k, after.num_classes), seen)
    return torch.nn.functional.pad(ids.cpu(), (0, k - ids.shape[1]), value=-1)


def _loss(after: Prediction, target: Tensor) -> Tensor:
    real = (target >= 0).float()
    log_prob = after.log_prob(target.clamp(min=0)).cpu()
    return -(log_prob * real).sum(dim=1) / real.sum(dim=1)


def without_seen(log: EventLog, points: EvalPoints, target: NDArray[np.int64]) -> NDArray[np.int64]:
    """`target` without what the history holds: lists that leave it out can never find it."""
    left, start = target.copy(), np.asarray(log.offsets)[points.user]
    for row, s, p in zip(left, start, points.point, strict=True):
        row[np.isin(row, log.items[s:p])] = -1
    return left


def pad(rows: list[NDArray[np.integer]]) -> Tensor:
    """(B, longest) int64, -1 behind the end of a row."""
    padded = np.full((len(rows), max([1, *map(len, rows)])), -1, dtype=np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(padded)


def mean_scores(
    model: Predictor,
    log: EventLog,
    points: EvalPoints,
    target: NDArray[np.int64],
    rules: ListRules,
    ranks: Ranks = ONE_PROCESS,
) -> dict[str, float]:
    """What training asks for again and again: means of the metrics at a few points."""
    ranked, loss = ranked_lists(model, log, points, target, rules, ranks=ranks)
    values = metrics_per_example(ranked, torch.from_numpy(target))
    if loss is not None:
        values["loss"] = loss
    return {name: float(value.double().nanmean()) for name, value in values.items()}
