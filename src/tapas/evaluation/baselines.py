"""Three rankers that need no training, and that a trained model has to beat.

All work on one log: `items` (N,) class ids sorted by user and then time, `offsets` (U+1,)
where each user's events start. A question is a pair (user, point): what follows
`items[offsets[user]:point]`? All fill up with the classes most frequent in training.
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

PAIRS_AT_ONCE = 1 << 22


class Baseline(ABC):
    """Ranks by counting. Training counts are given, so that nothing judged is counted."""

    def __init__(self, items: Integers, offsets: Integers, train_counts: Integers):
        if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(items):
            ends = "empty" if len(offsets) == 0 else f"from {offsets[0]} to {offsets[-1]}"
            raise UsageError(f"offsets are {ends}; expected from 0 to {len(items)}, len(items).")
        if len(items) and not 0 <= items.min() <= items.max() < len(train_counts):
            raise UsageError(
                f"items hold ids from {items.min()} to {items.max()}; expected 0 to "
                f"{len(train_counts) - 1}, a place in train_counts each."
            )
        self.items, self.offsets, self.num_classes = items, offsets, len(train_counts)
        order = np.argsort(-train_counts.astype(np.int64), kind="stable")  # ties by rising id
        self.popular: Ids = order[train_counts[order] > 0]

    def rank(self, user: Integers, point: Integers, k: int, *, exclude: bool = False) -> Ids:
        """The k best ids for each (user, point) of (P,) arrays, distinct: (P, k) int64.

        `exclude` leaves out the items of the history. Rows end in -1 where there are not k
        classes to recommend: one never seen in training or in the history never is.
        """
        check_positive("k", k)
        self._check_points(user, point)
        ranked = np.full((len(user), k), -1, dtype=np.int64)
        listed = np.zeros(self.num_classes, dtype=bool)
        for row, start, stop in zip(ranked, self.offsets[user], point, strict=True):
            history = self.items[start:stop]
            first = self._first_choice(start, stop, k + len(history) if exclude else k)
            barred = history if exclude else history[:0]
            _write(row, first, self.popular, barred, listed)
        return ranked

    @abstractmethod
    def _first_choice(self, start: int, stop: int, most: int) -> Ids:
        """At most `most` distinct ids, best first, for the history items[start:stop]."""

    def _check_points(self, user: Integers, point: Integers) -> None:
        num_users = len(self.offsets) - 1
        if len(user) != len(point):
            raise UsageError(f"there are {len(user)} users but {len(point)} points.")
        if len(user) and not 0 <= user.min() <= user.max() < num_users:
            raise UsageError(
                f"users are from {user.min()} to {user.max()}; expected 0 to {num_users - 1}."
            )
        bad = np.flatnonzero((point < self.offsets[user]) | (point > self.offsets[user + 1]))
        if len(bad):
            who, where = user[bad[0]], point[bad[0]]
            raise UsageError(
                f"point {where} is not one of user {who}, whose events are "
                f"{self.offsets[who]} to {self.offsets[who + 1]}. Points count from the start "
                "of items, not of the user."
            )


class MostPopular(Baseline):
    """The classes most frequent in training, ties by id; the same for everybody."""

    def _first_choice(self, start: int, stop: int, most: int) -> Ids:
        return self.popular[:0]


class OwnMostFrequent(Baseline):
    """The items most frequent in the user's own history, ties by the most recent."""

    def _first_choice(self, start: int, stop: int, most: int) -> Ids:
        ids, ago, count = np.unique(
            self.items[start:stop][::-1], return_index=True, return_counts=True
        )
        return ids[np.lexsort((ago, -count))[:most]].astype(np.int64)


class CoOccurrence(Baseline):
    """What followed the items of the user's last basket most often, in training.

    Equal `times` (N,) of one user are a basket. An event is followed by the events of the
    user's next basket, and, if these are fewer than `window`, by those after them until
    there are `window`. Only events before `train_end` (U,), a place in `items`, count.
    Of each item the `keep` most frequent followers are remembered (ties by id); the items
    of the last basket add up their counts.
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
                f"{len(items)}, one for each event, and {len(offsets) - 1}, one for each user."
            )
        bad = np.flatnonzero((train_end < offsets[:-1]) | (train_end > offsets[1:]))
        if len(bad):
            raise UsageError(
                f"train_end of user {bad[0]} is {train_end[bad[0]]}; expected {offsets[bad[0]]} to "
                f"{offsets[bad[0] + 1]}. It counts from the start of items, not of the user."
            )
        self.basket_start, basket_end = _baskets(times, offsets)
        first, last = _followers(basket_end, offsets, train_end, window)
        pair, count = _count_pairs(items, first, last, self.num_classes)
        item, follower = np.divmod(pair, max(1, self.num_classes))
        order = np.lexsort((follower, -count, item))
        place = np.arange(len(order)) - np.searchsorted(item, item)  # pairs rise, so items do
        order = order[place < keep]
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


def _write(row: Ids, first: Ids, rest: Ids, barred: Integers, listed: NDArray[np.bool_]) -> None:
    """Into `row` (k,) what is not `barred` of `first`, then of `rest`, nothing twice.

    `listed` is all False, one place for each id, and is left so.
    """
    listed[barred] = True
    first = first[~listed[first]][: len(row)]
    row[: len(first)] = first
    if len(first) < len(row):
        listed[first] = True
        # this many of the rest are enough, whatever was listed before
        rest = rest[: len(row) + len(barred)]
        rest = rest[~listed[rest]][: len(row) - len(first)]
        row[len(first) : len(first) + len(rest)] = rest
        listed[first] = False
    listed[barred] = False


def _baskets(times: Integers, offsets: Integers) -> tuple[Ids, Ids]:
    """Where the basket of each event starts and where it ends, (N,) each."""
    new = np.ones(len(times) + 1, dtype=bool)
    np.not_equal(times[1:], times[:-1], out=new[1:-1])
    new[offsets] = True
    starts = np.flatnonzero(new)
    basket = np.cumsum(new[:-1]) - 1
    return starts[basket], starts[basket + 1]


def _followers(
    basket_end: Ids, offsets: Integers, train_end: Integers, window: int
) -> tuple[Ids, Ids]:
    """First and last+1 of the training events that follow each event; equal if none do."""
    limit = np.repeat(train_end.astype(np.int64), np.diff(offsets))
    first = np.minimum(basket_end, limit)
    next_end = np.append(basket_end, 0)[np.minimum(first, len(basket_end))]
    last = np.minimum(np.maximum(next_end, first + window), limit)
    outside = np.arange(len(basket_end)) >= limit
    last[outside] = first[outside]
    return first, last


def _count_pairs(items: Integers, first: Ids, last: Ids, num_classes: int) -> tuple[Ids, Ids]:
    """Distinct item * num_classes + follower, rising, and how often each pair is met."""
    lengths = last - first
    total = lengths.sum()
    edges = np.searchsorted(np.cumsum(lengths), np.arange(PAIRS_AT_ONCE, total, PAIRS_AT_ONCE))
    pairs, counts = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for start, stop in zip([0, *edges], [*edges, len(items)], strict=True):
        length = lengths[start:stop]
        # the places first .. last-1 of every event, one after the other
        shift = first[start:stop] - (np.cumsum(length) - length)
        place = np.arange(length.sum()) + np.repeat(shift, length)
        pair = np.repeat(items[start:stop].astype(np.int64) * num_classes, length) + items[place]
        pair, count = np.unique(pair, return_counts=True)
        pairs.append(pair)
        counts.append(count)
    pair, which = np.unique(np.concatenate(pairs), return_inverse=True)
    return pair, np.bincount(which, np.concatenate(counts), len(pair)).astype(np.int64)


POPULAR, FAVOURITES, FOLLOWERS = "most popular", "the user's favourites", "co-occurrence"
COUNTING = (POPULAR, FAVOURITES, FOLLOWERS)


def rank_by_counting(name: str, log: EventLog, split: Split, points: EvalPoints) -> Tensor:
    """Lists (P, 20) of one of `COUNTING`."""
    arrays = (log.items, np.asarray(log.offsets), split.train_counts)
    ranker: Baseline
    if name == POPULAR:
        ranker = MostPopular(*arrays)
    elif name == FAVOURITES:
        ranker = OwnMostFrequent(*arrays)
    else:
        ranker = CoOccurrence(*arrays, times=log.times, train_end=split.train_end)
    return torch.from_numpy(ranker.rank(points.user, points.point, LIST_LENGTH))
