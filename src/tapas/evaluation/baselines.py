"""Three baselines that rank by counting, which a trained model has to beat.

All work on one log: `items` (N,) are class ids sorted by user and time, `offsets` (U+1,) are the
starts of the users. For a pair (user, point) they rank what follows the history
`items[offsets[user]:point]`. Lists are filled up with the classes most frequent in training.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints, Split
from tapas.errors import UsageError
from tapas.evaluation.scores import LIST_LENGTH
from tapas.shapes import check_positive

Ids = NDArray[np.int64]
Integers = NDArray[np.integer]

PAIRS_PER_CHUNK = 1 << 22


class Baseline(ABC):
    """Ranks by counting. `train_counts` (C,) must not include held-out events."""

    def __init__(self, items: Integers, offsets: Integers, train_counts: Integers):
        if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(items):
            ends = "empty" if len(offsets) == 0 else f"from {offsets[0]} to {offsets[-1]}"
            raise UsageError(
                f"offsets are {ends}; expected from 0 to {len(items)}, the number of items."
            )
        if len(items) and not 0 <= items.min() <= items.max() < len(train_counts):
            raise UsageError(
                f"items have ids from {items.min()} to {items.max()}; expected 0 to "
                f"{len(train_counts) - 1}, the classes of train_counts."
            )
        self.items, self.offsets, self.num_classes = items, offsets, len(train_counts)
        order = np.argsort(-train_counts.astype(np.int64), kind="stable")  # ties by id
        self.popular: Ids = order[train_counts[order] > 0]

    def rank(self, user: Integers, point: Integers, k: int, *, exclude: bool = False) -> Ids:
        """The k best distinct ids for each pair of `user` (P,) and `point` (P,): (P, k) int64.

        `exclude` leaves out the items of the history. Rows end in -1 if fewer than k classes were
        seen in training or in the history.
        """
        check_positive("k", k)
        self._check_points(user, point)
        ranked = np.full((len(user), k), -1, dtype=np.int64)
        listed = np.zeros(self.num_classes, dtype=bool)
        for row, start, stop in zip(ranked, self.offsets[user], point, strict=True):
            history = self.items[start:stop]
            first = self._first_choice(start, stop, k + len(history) if exclude else k)
            excluded = history if exclude else history[:0]
            _fill(row, first, self.popular, excluded, listed)
        return ranked

    @abstractmethod
    def _first_choice(self, start: int, stop: int, most: int) -> Ids:
        """Up to `most` distinct ids, best first, for the history items[start:stop]."""

    def _check_points(self, user: Integers, point: Integers) -> None:
        num_users = len(self.offsets) - 1
        if len(user) != len(point):
            raise UsageError(
                f"there are {len(user)} users but {len(point)} points; expected one point each."
            )
        if len(user) and not 0 <= user.min() <= user.max() < num_users:
            raise UsageError(
                f"users are from {user.min()} to {user.max()}; expected 0 to {num_users - 1}."
            )
        bad = np.flatnonzero((point < self.offsets[user]) | (point > self.offsets[user + 1]))
        if len(bad):
            who, where = user[bad[0]], point[bad[0]]
            raise UsageError(
                f"point {where} is outside the events of user {who}, {self.offsets[who]} to "
                f"{self.offsets[who + 1]}. Points are positions in items, not within the user."
            )


class MostPopular(Baseline):
    """The classes most frequent in training, ties by id; the same for all users."""

    def _first_choice(self, start: int, stop: int, most: int) -> Ids:
        return self.popular[:0]


class UserMostFrequent(Baseline):
    """The items most frequent in the user's history, ties by the most recent."""

    def _first_choice(self, start: int, stop: int, most: int) -> Ids:
        ids, ago, count = np.unique(
            self.items[start:stop][::-1], return_index=True, return_counts=True
        )
        return ids[np.lexsort((ago, -count))[:most]].astype(np.int64)


class CoOccurrence(Baseline):
    """The items that most often followed those of the user's last basket, in training.

    A basket is the events of one user with equal `times` (N,). The followers of an event are the
    user's next `window` events after its basket, or all of the next basket if that is larger.
    Only events before `train_end` (U,), positions in `items`, are counted. The `keep` most
    frequent followers of each item are stored (ties by id), and the counts of all items of the
    last basket are added up.
    """

    def __init__(
        self,
        items: Integers,
        offsets: Integers,
        train_counts: Integers,
        *,
        times: Integers,
        train_end: Integers,
        window: int = 5,
        keep: int = 100,
    ):
        super().__init__(items, offsets, train_counts)
        check_positive("window", window)
        check_positive("keep", keep)
        if len(times) != len(items) or len(train_end) != len(offsets) - 1:
            raise UsageError(
                f"times and train_end have lengths {len(times)} and {len(train_end)}; expected "
                f"{len(items)}, one per event, and {len(offsets) - 1}, one per user."
            )
        bad = np.flatnonzero((train_end < offsets[:-1]) | (train_end > offsets[1:]))
        if len(bad):
            raise UsageError(
                f"train_end of user {bad[0]} is {train_end[bad[0]]}; expected {offsets[bad[0]]} to "
                f"{offsets[bad[0] + 1]}. It is a position in items, not within the user."
            )
        self.basket_start, basket_end = _baskets(times, offsets)
        first, last = _followers(basket_end, offsets, train_end, window)
        pair, count = _count_pairs(items, first, last, self.num_classes)
        item, follower = np.divmod(pair, max(1, self.num_classes))
        order = np.lexsort((follower, -count, item))
        rank = np.arange(len(order)) - np.searchsorted(item, item)  # item is sorted
        order = order[rank < keep]
        self.follower, self.count = follower[order], count[order]
        self.starts = np.searchsorted(item[order], np.arange(self.num_classes + 1))

    def _first_choice(self, start: int, stop: int, most: int) -> Ids:
        if start == stop:
            return self.popular[:0]
        basket = self.items[max(start, self.basket_start[stop - 1]) : stop]
        spans = [slice(self.starts[item], self.starts[item + 1]) for item in np.unique(basket)]
        if len(spans) == 1:
            return self.follower[spans[0]][:most]
        ids, which = np.unique(
            np.concatenate([self.follower[span] for span in spans]), return_inverse=True
        )
        votes = np.bincount(which, np.concatenate([self.count[span] for span in spans]))
        return ids[np.argsort(-votes, kind="stable")[:most]]


def _fill(row: Ids, first: Ids, rest: Ids, excluded: Integers, listed: NDArray[np.bool_]) -> None:
    """Fill `row` (k,) with the ids of `first`, then of `rest`, distinct and none `excluded`.

    `listed` (C,) is scratch space: all False before and after.
    """
    listed[excluded] = True
    first = first[~listed[first]][: len(row)]
    row[: len(first)] = first
    if len(first) < len(row):
        listed[first] = True
        rest = rest[: len(row) + len(excluded)]  # enough: at most that many are skipped
        rest = rest[~listed[rest]][: len(row) - len(first)]
        row[len(first) : len(first) + len(rest)] = rest
        listed[first] = False
    listed[excluded] = False


def _baskets(times: Integers, offsets: Integers) -> tuple[Ids, Ids]:
    """Start and end (exclusive) of the basket of each event, (N,) each."""
    new = np.ones(len(times) + 1, dtype=bool)
    np.not_equal(times[1:], times[:-1], out=new[1:-1])
    new[offsets] = True
    starts = np.flatnonzero(new)
    basket = np.cumsum(new[:-1]) - 1
    return starts[basket], starts[basket + 1]


def _followers(
    basket_end: Ids, offsets: Integers, train_end: Integers, window: int
) -> tuple[Ids, Ids]:
    """Start and end (exclusive) of the training events that follow each event, (N,) each."""
    limit = np.repeat(train_end.astype(np.int64), np.diff(offsets))
    first = np.minimum(basket_end, limit)
    next_end = np.append(basket_end, 0)[np.minimum(first, len(basket_end))]
    last = np.minimum(np.maximum(next_end, first + window), limit)
    outside = np.arange(len(basket_end)) >= limit
    last[outside] = first[outside]
    return first, last


def _count_pairs(items: Integers, first: Ids, last: Ids, num_classes: int) -> tuple[Ids, Ids]:
    """Distinct pairs as item * num_classes + follower, sorted, and the count of each."""
    lengths = last - first
    total = lengths.sum()
    edges = np.searchsorted(np.cumsum(lengths), np.arange(PAIRS_PER_CHUNK, total, PAIRS_PER_CHUNK))
    pairs, counts = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for start, stop in zip([0, *edges], [*edges, len(items)], strict=True):
        length = lengths[start:stop]
        # concatenate the ranges first .. last-1 of all events
        shift = first[start:stop] - (np.cumsum(length) - length)
        position = np.arange(length.sum()) + np.repeat(shift, length)
        pair = np.repeat(items[start:stop].astype(np.int64) * num_classes, length) + items[position]
        pair, count = np.unique(pair, return_counts=True)
        pairs.append(pair)
        counts.append(count)
    pair, which = np.unique(np.concatenate(pairs), return_inverse=True)
    return pair, np.bincount(which, np.concatenate(counts), len(pair)).astype(np.int64)


# as ledgers have them; `title_of` is what a user reads
POPULAR, FAVOURITES, FOLLOWERS = "most popular", "the user's favourites", "co-occurrence"
COUNTING = (POPULAR, FAVOURITES, FOLLOWERS)
OWN = "own most frequent"


def title_of(name: str) -> str:
    """The name of a baseline in tables and sentences."""
    return OWN if name == FAVOURITES else name


def rank_by_counting(
    name: str,
    log: EventLog,
    split: Split,
    points: EvalPoints,
    *,
    exclude_seen: bool = False,
    excluded_class: int | None = None,
) -> Tensor:
    """Ranked lists (P, 20) at `points` of the baseline `name`, one of `COUNTING`.

    `exclude_seen` leaves out the items of the history; `excluded_class` is never listed.
    """
    arrays = (log.items, np.asarray(log.offsets), split.train_counts)
    ranker: Baseline
    if name == POPULAR:
        ranker = MostPopular(*arrays)
    elif name == FAVOURITES:
        ranker = UserMostFrequent(*arrays)
    else:
        ranker = CoOccurrence(*arrays, times=log.times, train_end=split.train_end)
    ranked = ranker.rank(points.user, points.point, LIST_LENGTH + 1, exclude=exclude_seen)
    if excluded_class is not None:
        order = np.argsort(ranked == excluded_class, axis=1, kind="stable")  # it goes last
        ranked = np.take_along_axis(ranked, order, axis=1)
    return torch.from_numpy(ranked[:, :LIST_LENGTH])
