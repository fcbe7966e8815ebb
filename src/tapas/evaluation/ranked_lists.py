"""Exact ranked lists and full softmax losses of a model at evaluation points."""

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
from tapas.errors import DataError
from tapas.evaluation.scores import LIST_LENGTH, metrics_per_example
from tapas.tables.ranks import ONE_PROCESS, Ranks

QUERIES_PER_CHUNK = 256
Integers = NDArray[np.integer]


class Prediction(Protocol):
    """A model's prediction of the next item of B histories."""

    @property
    def num_classes(self) -> int: ...

    def topk(self, k: int, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores and ids (B, k) of the k best classes, exact, without the ids in `exclude` (B, E).

        Negative ids in `exclude` are padding.
        """

    def log_prob(self, ids: Tensor) -> Tensor:
        """Exact log-probabilities (B, L) of `ids` (B, L)."""


class Predictor(Protocol):
    """A model that can be evaluated."""

    def predict(self, items: Tensor, lengths: Tensor) -> Prediction:
        """Predict from histories `items` (B, H), of which the first `lengths` (B,) are real."""


@dataclass(frozen=True, slots=True)
class ListOptions:
    """What a ranked list may contain, and how much of a history the model sees."""

    history: int  # most recent events that the model sees
    exclude_seen: bool = False  # leave out the items of the history
    excluded_class: int | None = None  # never listed, such as the class of all rare items


@torch.no_grad()
def ranked_lists(
    model: Predictor,
    log: EventLog,
    points: EvalPoints,
    target: NDArray[np.int64],
    options: ListOptions,
    *,
    with_loss: bool = True,
    on_progress: Callable[[int], None] = lambda done: None,
    ranks: Ranks = ONE_PROCESS,
) -> tuple[Tensor, Tensor | None]:
    """The 20 best items at each of `points`, (P, 20), and the loss (P,) of `target` (P, L).

    Lists with fewer than 20 items end in -1. The loss is the full softmax loss in nats, averaged
    over the targets of an example, NaN without targets; it is None unless `with_loss`. With
    several `ranks` each ranks its share of every chunk, and all get the same result.
    """
    start, point, items = np.asarray(log.offsets)[points.user], points.point, log.items
    lists, losses = [], []
    for first in range(0, len(points), QUERIES_PER_CHUNK):
        size = min(QUERIES_PER_CHUNK, len(points) - first)
        mine = slice(*(first + bound for bound in ranks.local_range(size)))
        recent, lengths, _ = gather_histories(items, start[mine], point[mine], options.history)
        prediction = model.predict(torch.from_numpy(recent), torch.from_numpy(lengths))
        exclude: Tensor | None = None
        excluded = [] if options.excluded_class is None else [np.array([options.excluded_class])]
        if options.exclude_seen:
            pairs = zip(start[mine], point[mine], strict=True)
            exclude = pad([np.concatenate([np.unique(items[s:p]), *excluded]) for s, p in pairs])
        elif excluded:
            exclude = pad(excluded * len(recent))
        sizes = ranks.local_sizes(size)
        lists.append(ranks.gather_rows(top_padded(prediction, LIST_LENGTH, exclude), sizes))
        if with_loss:
            losses.append(
                ranks.gather_rows(_loss(prediction, torch.from_numpy(target[mine])), sizes)
            )
        on_progress(first + size)
    return torch.cat(lists), torch.cat(losses) if with_loss else None


def top_padded(prediction: Prediction, k: int, exclude: Tensor | None) -> Tensor:
    """Ids of the k best classes without `exclude`, (B, k), padded with -1."""
    _, ids = prediction.topk(min(k, prediction.num_classes), exclude)
    return torch.nn.functional.pad(ids.cpu(), (0, k - ids.shape[1]), value=-1)


def _loss(prediction: Prediction, target: Tensor) -> Tensor:
    real = (target >= 0).float()
    log_prob = prediction.log_prob(target.clamp(min=0)).cpu()
    return -(log_prob * real).sum(dim=1) / real.sum(dim=1)


def without_seen(log: EventLog, points: EvalPoints, target: NDArray[np.int64]) -> NDArray[np.int64]:
    """`target` (P, L) with -1 for items of the history, which `exclude_seen` never lists.

    Raises `DataError` if no target is left.
    """
    left, start = target.copy(), np.asarray(log.offsets)[points.user]
    for row, s, p in zip(left, start, points.point, strict=True):
        row[np.isin(row, log.items[s:p])] = -1
    if not (left >= 0).any():
        raise DataError(
            f"none of the next items of the {len(points):,} users to judge by is new to its user, "
            "and items that a user had are excluded. Allow them with loop.exclude_seen = false, or "
            "with --keep-seen when you evaluate a run."
        )
    return left


def pad(rows: list[NDArray[np.integer]]) -> Tensor:
    """Rows of different lengths as one int64 tensor (B, longest), padded with -1."""
    padded = np.full((len(rows), max([1, *map(len, rows)])), -1, dtype=np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(padded)


def mean_scores(
    model: Predictor,
    log: EventLog,
    points: EvalPoints,
    target: NDArray[np.int64],
    options: ListOptions,
    ranks: Ranks = ONE_PROCESS,
) -> dict[str, float]:
    """Means of all metrics and of the loss at `points`, for validation during training."""
    ranked, loss = ranked_lists(model, log, points, target, options, ranks=ranks)
    values = metrics_per_example(ranked, torch.from_numpy(target))
    if loss is not None:
        values["loss"] = loss
    return {name: float(value.double().nanmean()) for name, value in values.items()}
