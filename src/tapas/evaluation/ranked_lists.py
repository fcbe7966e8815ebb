"""Exact ranked lists and full softmax losses of a model at evaluation points."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.data.baskets import baskets_ago
from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints
from tapas.data.windows import gather_histories
from tapas.errors import DataError
from tapas.evaluation.scores import LIST_LENGTH, metrics_per_example
from tapas.ragged import Ids, chunks, distinct_keys, holds, padded
from tapas.tables.ranks import ONE_PROCESS, Ranks

QUERIES_PER_CHUNK = 1024  # the native top-k works on as many at a time
EVENTS_PER_CHUNK = 1 << 18  # of padded histories; but see FEWEST_QUERIES
FEWEST_QUERIES = 256  # however long histories are
EXCLUDED_PER_CHUNK = 1 << 24  # of padded lists of classes that are left out
SEEN_PER_CHUNK = 1 << 21  # events of histories that are sorted at a time


class Prediction(Protocol):
    """A model's prediction of the next item of B histories."""

    @property
    def num_classes(self) -> int: ...

    def topk(self, k: int, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores and ids (B, k) of the k best classes, exact, without the ids in `exclude` (B, E).

        Negative ids in `exclude` are padding.
        """

    def topk_and_log_prob(
        self, k: int, ids: Tensor, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The ids (B, k) of `topk`, and exact log-probabilities (B, L) of `ids` (B, L)."""


class Predictor(Protocol):
    """A model that can be evaluated."""

    def predict(self, items: Tensor, lengths: Tensor, age: Tensor | None = None) -> Prediction:
        """Predict from histories `items` (B, H), of which the first `lengths` (B,) are real.

        `age` (B, H) is how many baskets ago each event was, 1 for the last basket.
        """


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
    start, point = np.asarray(log.offsets)[points.user], points.point
    lists, losses = [], []
    for chunk in point_chunks(point - start, options):
        size = chunk.stop - chunk.start
        mine = slice(*(chunk.start + bound for bound in ranks.local_range(size)))
        prediction = model.predict(*histories_at(log, start[mine], point[mine], options.history))
        exclude = excluded_at(log, start[mine], point[mine], options)
        sizes = ranks.local_sizes(size)
        wanted = torch.from_numpy(target[mine]) if with_loss else None
        best, loss = _ranked(prediction, wanted, exclude)
        lists.append(ranks.gather_rows(best, sizes))
        if loss is not None:
            losses.append(ranks.gather_rows(loss, sizes))
        on_progress(chunk.stop)
    return torch.cat(lists), torch.cat(losses) if with_loss else None


def histories_at(
    log: EventLog, start: Ids, point: Ids, history: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What a model is given: the last `history` of the events start[b]:point[b] of `log`.

    Items (B, T), lengths (B,), and how many baskets ago each event was, (B, T).
    """
    width = int(min(history, (point - start).max(initial=1)))
    items, lengths, event = gather_histories(log.items, start, point, width)
    age = baskets_ago(log.times[event], lengths)
    return torch.from_numpy(items), torch.from_numpy(lengths), torch.from_numpy(age)


def point_chunks(lengths: Ids, options: ListOptions) -> Iterator[slice]:
    """Slices of points with histories of `lengths` (P,) that are ranked at a time."""
    most = max(FEWEST_QUERIES, EVENTS_PER_CHUNK // options.history)
    most = min(QUERIES_PER_CHUNK, most)
    for first in range(0, len(lengths), most):
        last = min(first + most, len(lengths))
        step = last - first
        if options.exclude_seen:
            step = max(1, min(step, EXCLUDED_PER_CHUNK // int(lengths[first:last].max())))
        for start in range(first, last, step):
            yield slice(start, min(start + step, last))


def excluded_at(log: EventLog, start: Ids, stop: Ids, options: ListOptions) -> Tensor | None:
    """(B, E) the classes that lists must not have, for the histories items[start:stop]."""
    one = options.excluded_class
    if options.exclude_seen:
        keys = distinct_keys(log.items, start, stop, log.num_items)
        exclude = padded(*np.divmod(keys, log.num_items), len(start))
        if one is not None:
            exclude = np.pad(exclude, ((0, 0), (0, 1)), constant_values=one)
        return torch.from_numpy(exclude)
    return None if one is None else torch.full((len(start), 1), one)


def _ranked(
    prediction: Prediction, target: Tensor | None, exclude: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The 20 best without `exclude`, (B, 20), padded with -1, and the loss (B,) of `target`."""
    k = min(LIST_LENGTH, prediction.num_classes)
    loss = None
    if target is None:
        _, best = prediction.topk(k, exclude)
    else:
        best, log_prob = prediction.topk_and_log_prob(k, target.clamp(min=0), exclude)
        real = (target >= 0).float()
        loss = -(log_prob.cpu() * real).sum(dim=1) / real.sum(dim=1)
    return torch.nn.functional.pad(best.cpu(), (0, LIST_LENGTH - k), value=-1), loss


def without_seen(log: EventLog, points: EvalPoints, target: NDArray[np.int64]) -> NDArray[np.int64]:
    """`target` (P, L) with -1 for items of the history, which `exclude_seen` never lists.

    Raises `DataError` if no target is left.
    """
    left, start = target.copy(), np.asarray(log.offsets)[points.user]
    for some in chunks(points.point - start, SEEN_PER_CHUNK):
        keys = distinct_keys(log.items, start[some], points.point[some], log.num_items)
        row = np.arange(some.stop - some.start)[:, None]
        wanted = row * log.num_items + np.maximum(target[some], 0)
        left[some][holds(keys, wanted)] = -1  # padding is -1 already
    if not (left >= 0).any():
        raise DataError(
            f"none of the next items of the {len(points):,} users to judge by is new to its user, "
            "and items that a user had are excluded. Allow them with loop.exclude_seen = false, or "
            "with --keep-seen when you evaluate a run."
        )
    return left


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
