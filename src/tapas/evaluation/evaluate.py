"""Evaluation of a model and three counting baselines on held-out events."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tapas.data.event_log import EventLog
from tapas.data.splits import NONE, EvalPoints, Split, next_items_at
from tapas.errors import UsageError, choice
from tapas.evaluation.baselines import COUNTING, rank_by_counting, title_of
from tapas.evaluation.intervals import Interval
from tapas.evaluation.points import describe_points, sample_users
from tapas.evaluation.ranked_lists import (
    ListOptions,
    Predictor,
    ranked_lists,
    without_seen,
)
from tapas.evaluation.scores import CUTOFFS, LIST_LENGTH, RankedLists, Scores, score_together
from tapas.tables.ranks import ONE_PROCESS, Ranks


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of the model (first), of each baseline and of other lists on the same examples.

    The names of the fields are those of `tapas evaluate --json`.
    """

    part: str  # "test" or "validation"
    exclude_seen: bool
    num_targets: int  # most targets of an example
    scores: dict[str, Scores]
    lead: dict[str, Interval]  # MAP@20 of the model minus that of each other, paired
    split: dict[str, Any]  # `Split.report`, and the number of targets seen before

    def describe_points(self) -> str:
        """Who is judged at which points, and what is to be found."""
        scores = self.scores["model"]
        num_items = sum(bucket.num_classes for bucket in scores.buckets.values())
        users = self.split[f"{self.part}_users"]
        seen = "may be recommended again"
        if self.exclude_seen:
            seen = f"are left out of lists and targets ({self.split['seen_targets']:,} targets)"
        return (
            f"{describe_points(scores.num_examples, users, self.num_targets, num_items)} Items "
            f"that a user had before {seen}."
        )


def evaluate(
    model: Predictor,
    log: EventLog,
    split: Split,
    options: ListOptions,
    *,
    num_targets: int,
    split_name: str = "test",
    limit: int | None = None,
    cutoffs: Sequence[int] = CUTOFFS,
    others: Mapping[str, RankedLists] = MappingProxyType({}),
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    ranks: Ranks = ONE_PROCESS,
) -> Evaluation:
    """Rank all items exactly, for the model and the baselines, at the points of one split.

    `split_name` is "test" or "validation"; `limit` is the size of a sample of the users,
    `cutoffs` are the lengths of lists that metrics are computed for. `others` are lists at the
    same points that are scored, too, by name. `on_progress(done, total)` is called after each
    chunk of examples.
    """
    points, target = held_out(
        log, split, options, split_name=split_name, num_targets=num_targets, limit=limit
    )
    first = ranked_lists(
        model, log, points, target, options,
        on_progress=lambda done: on_progress(done, len(points)), ranks=ranks,
    )  # fmt: skip
    lists: dict[str, RankedLists] = {"model": first}
    for name in COUNTING:
        counted = rank_by_counting(
            name, log, split, points,
            exclude_seen=options.exclude_seen, excluded_class=options.excluded_class,
        )  # fmt: skip
        lists[title_of(name)] = counted, None
    lists |= others
    truth, counts = torch.from_numpy(target), torch.from_numpy(split.train_counts)
    scores, lead = score_together(
        lists, truth, train_counts=counts, k=min(num_targets, LIST_LENGTH), cutoffs=cutoffs
    )
    report: dict[str, Any] = dict(split.report)
    sizes = (next_items_at(log, points, num_targets) >= 0).sum(axis=1)
    report["seen_targets"] = int(sizes.sum()) - int((target >= 0).sum())
    return Evaluation(split_name, options.exclude_seen, int(sizes.max()), scores, lead, report)


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
    if not len(points) and split.config.kind == NONE:
        raise UsageError(
            "this run was trained on its whole log and holds out nothing to judge it by. Evaluate "
            "the run that it is like."
        )
    if not len(points):
        raise UsageError(
            f"this run holds out no {split_name} events. Train with split.{split_name} above 0, or "
            "evaluate on the other split."
        )
    if limit is not None:
        points = sample_users(points, limit)
    target = next_items_at(log, points, num_targets)
    return points, without_seen(log, points, target) if options.exclude_seen else target
