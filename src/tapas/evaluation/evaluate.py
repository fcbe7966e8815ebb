"""Evaluation of a model and three counting baselines on held-out events."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints, Split, next_items_at
from tapas.errors import UsageError, choice
from tapas.evaluation.baselines import CoOccurrence, MostPopular, UserMostFrequent
from tapas.evaluation.intervals import Interval
from tapas.evaluation.ranked_lists import (
    ListOptions,
    Predictor,
    ranked_lists,
    without_seen,
)
from tapas.evaluation.scores import (
    LIST_LENGTH,
    Scores,
    metrics_per_example,
    paired_difference,
    score_lists,
)
from tapas.tables.ranks import ONE_PROCESS, Ranks


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of the model (first) and of each baseline on the same examples.

    The names of the fields are those of `tapas evaluate --json`.
    """

    part: str  # "test" or "validation"
    exclude_seen: bool
    num_targets: int  # most targets of an example
    scores: dict[str, Scores]
    lead: dict[str, Interval]  # MAP@20 of the model minus that of each baseline, paired
    split: dict[str, Any]  # `Split.report`, and the number of targets seen before


def evaluate(
    model: Predictor,
    log: EventLog,
    split: Split,
    options: ListOptions,
    *,
    num_targets: int,
    split_name: str = "test",
    limit: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    ranks: Ranks = ONE_PROCESS,
) -> Evaluation:
    """Rank all items exactly, for the model and the baselines, at the points of one split.

    `split_name` is "test" or "validation"; `limit` evaluates only the first examples.
    `on_progress(done, total)` is called after each chunk of examples.
    """
    points, target = held_out(
        log, split, options, split_name=split_name, num_targets=num_targets, limit=limit
    )
    ranked, loss = ranked_lists(
        model, log, points, target, options,
        on_progress=lambda done: on_progress(done, len(points)), ranks=ranks,
    )  # fmt: skip
    lists = {"model": ranked}
    arrays = (log.items, log.offsets, split.train_counts)
    for name, baseline in {
        "most popular": MostPopular(*arrays),
        "own most frequent": UserMostFrequent(*arrays),
        "co-occurrence": CoOccurrence(*arrays, times=log.times, train_end=split.train_end),
    }.items():
        found = baseline.rank(
            points.user, points.point, LIST_LENGTH + 1, exclude=options.exclude_seen
        )
        lists[name] = torch.from_numpy(_without(found, options.excluded_class))
    truth, counts = torch.from_numpy(target), torch.from_numpy(split.train_counts)
    scores = {
        name: score_lists(
            each,
            truth,
            train_counts=counts,
            loss=loss if name == "model" else None,
            k=min(num_targets, LIST_LENGTH),
        )
        for name, each in lists.items()
    }
    precision = {
        name: metrics_per_example(each, truth)[f"map@{LIST_LENGTH}"] for name, each in lists.items()
    }
    lead = {
        name: paired_difference(precision["model"], value)
        for name, value in precision.items()
        if name != "model"
    }
    report: dict[str, Any] = dict(split.report)
    all_targets = int((next_items_at(log, points, num_targets) >= 0).sum())
    report["seen_targets"] = all_targets - int((target >= 0).sum())
    return Evaluation(split_name, options.exclude_seen, num_targets, scores, lead, report)


def held_out(
    log: EventLog,
    split: Split,
    options: ListOptions,
    *,
    split_name: str = "test",
    num_targets: int,
    limit: int | None = None,
) -> tuple[EvalPoints, NDArray[np.int64]]:
    """The points of a split, and the next `num_targets` items at each, (P, L), padded with -1.

    With `options.exclude_seen` items of the history are no targets. Raises `UsageError` if the
    split is unknown or empty.
    """
    points = choice("split", split_name, {"test": split.test, "validation": split.validation})
    if not len(points):
        raise UsageError(
            f"this run holds out no {split_name} events. Train with split.{split_name} above 0, or "
            "evaluate on the other split."
        )
    if limit is not None:
        points = points[:limit]
    target = next_items_at(log, points, num_targets)
    return points, without_seen(log, points, target) if options.exclude_seen else target


def _without(ranked: NDArray[np.int64], excluded: int | None) -> NDArray[np.int64]:
    """The first 20 ids of each row of `ranked` (P, 21) without `excluded`."""
    if excluded is None:
        return ranked[:, :LIST_LENGTH]
    order = np.argsort(ranked == excluded, axis=1, kind="stable")  # excluded goes last
    return np.take_along_axis(ranked, order, axis=1)[:, :LIST_LENGTH]
