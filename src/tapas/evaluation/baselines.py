"""Three baselines that rank by counting, which a trained model has to beat.

All work on one log: `items` (N,) are class ids sorted by user and time, `offsets` (U+1,) are the
starts of the users. For a pair (user, point) they rank what follows the history
`items[offsets[user]:point]`. Lists are filled up with the classes most frequent in training.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from tapas.data.baskets import basket_bounds
from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints, Split
from tapas.errors import UsageError
from tapas.evaluation.followers import count_followers, following
from tapas.evaluation.scores import LIST_LENGTH
from tapas.ragged import (
    Ids,
    Integers,
    chunks,
    distinct_keys,
    holds,
    ordered,
    places,
    runs,
    spans,
)
from tapas.shapes import check_positive

ELEMENTS_PER_CHUNK = 1 << 21  # events and candidates that are sorted at a time


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
        trained = np.flatnonzero(train_counts)
        counts = train_counts[trained].astype(np.int64)
        self.popular: Ids = trained[ordered(counts.max(initial=0) - counts)[1]]  # ties by id
        self.place = np.full(self.num_classes, len(self.popular))  # of each class among these
        self.place[self.popular] = np.arange(len(self.popular))

    def rank(self, user: Integers, point: Integers, k: int, *, exclude: bool = False) -> Ids:
        """The k best distinct ids for each pair of `user` (P,) and `point` (P,): (P, k) int64.

        `exclude` leaves out the items of the history. Rows end in -1 if fewer than k classes were
        seen in training or in the history.
        """
        check_positive("k", k)
        self._check_points(user, point)
        start = self.offsets[user]
        ranked = np.full((len(user), k), -1, dtype=np.int64)
        for some in chunks(self._sizes(start, point) + k, ELEMENTS_PER_CHUNK):
            self._rank(ranked[some], start[some], point[some], exclude)
        return ranked

    def _rank(self, ranked: Ids, start: Integers, stop: Integers, exclude: bool) -> None:
        """Fill `ranked` (P, k), which is -1, for the histories items[start:stop]."""
        row, ids = self._first_choices(start, stop, exclude)
        place = places(row)
        listed = place < ranked.shape[1]
        row, ids, place = row[listed], ids[listed], place[listed]
        ranked[row, place] = ids
        if exclude:
            position, of_history = spans(start, stop)
            row, ids = np.append(of_history, row), np.append(self.items[position], ids)
        self._fill(ranked, row, ids)

    def _fill(self, ranked: Ids, row: Ids, ids: Ids) -> None:
        """Fill up `ranked` (P, k) with popular classes; row[i] must not get ids[i] again.

        If e_0 < e_1 < ... are the places of such ids among the popular classes, the j-th class that
        is left is at place j + (the number of i with e_i - i <= j).
        """
        num_rows, k = ranked.shape
        place, size = self.place[ids], np.bincount(row, minlength=num_rows)
        near = place < np.minimum(k + size, len(self.popular))[row]  # others are never reached
        width = len(self.popular) + k + 1
        key, _ = ordered(row[near] * width + place[near])
        key = key[runs(key)[0]]
        row = key // width
        key -= places(row)
        missing = ranked < 0  # at the ends of the rows
        slot, column = np.nonzero(missing)
        j = column - (k - missing.sum(axis=1))[slot]
        before = np.searchsorted(row, np.arange(num_rows))
        place = j + np.searchsorted(key, slot * width + j, side="right") - before[slot]
        there = place < len(self.popular)
        ranked[slot[there], column[there]] = self.popular[place[there]]

    def _sizes(self, start: Integers, stop: Integers) -> Ids:
        """How many numbers ranking the histories items[start:stop] takes, (P,)."""
        return (stop - start).astype(np.int64)

    @abstractmethod
    def _first_choices(self, start: Integers, stop: Integers, exclude: bool) -> tuple[Ids, Ids]:
        """Distinct ids for each history items[start:stop], best first; `exclude` as in `rank`.

        Returns the row of each id, ascending, and the ids.
        """

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

    def _first_choices(self, start: Integers, stop: Integers, exclude: bool) -> tuple[Ids, Ids]:
        return self.popular[:0], self.popular[:0]


class UserMostFrequent(Baseline):
    """The items most frequent in the user's history, ties by the most recent."""

    def _first_choices(self, start: Integers, stop: Integers, exclude: bool) -> tuple[Ids, Ids]:
        if exclude:
            return self.popular[:0], self.popular[:0]
        position, row = spans(start, stop)
        longest = int((stop - start).max(initial=0)) + 1
        key, order = ordered(row * self.num_classes + self.items[position])
        first, count = runs(key)
        latest = position[order][first + count - 1]  # equal keys are in the order of events
        row, ids = np.divmod(key[first], self.num_classes)
        ago = stop[row] - latest
        key, order = ordered((row * longest + longest - 1 - count) * longest + ago)
        return row[order], ids[order]


class CoOccurrence(Baseline):
    """The items that most often followed those of the user's last basket, in training.

    A basket is the events of one user with equal `times` (N,). The followers of an event are the
    user's next `window` events after its basket, or all of the next basket if that is larger.
    Only events before `train_end` (U,), positions in `items`, are counted. The `keep` most
    frequent followers of each item count (ties by id), and the counts of all items of the last
    basket are added up. `rank` counts the followers of the items that it needs.
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
        self.keep = keep
        self.basket_start, basket_end = basket_bounds(times, offsets)
        self.following = following(basket_end, offsets, train_end, window)

    def rank(self, user: Integers, point: Integers, k: int, *, exclude: bool = False) -> Ids:
        self._check_points(user, point)
        basket = spans(self._basket(self.offsets[user], point), point)[0]
        wanted = np.zeros(self.num_classes, dtype=bool)
        wanted[self.items[basket]] = True
        self.starts, self.follower, self.count = count_followers(
            self.items, *self.following, wanted, self.keep
        )
        return super().rank(user, point, k, exclude=exclude)

    def _basket(self, start: Integers, stop: Integers) -> Ids:
        """Where the last basket of each history items[start:stop] begins, (P,)."""
        if not len(self.items):
            return start.astype(np.int64)
        begin = np.maximum(start, self.basket_start[np.maximum(stop, 1) - 1])
        return np.where(stop > start, begin, stop)

    def _sizes(self, start: Integers, stop: Integers) -> Ids:
        return super()._sizes(start, stop) + self.keep * (stop - self._basket(start, stop))

    def _first_choices(self, start: Integers, stop: Integers, exclude: bool) -> tuple[Ids, Ids]:
        basket = distinct_keys(self.items, self._basket(start, stop), stop, self.num_classes)
        row, item = np.divmod(basket, self.num_classes)
        position, which = spans(self.starts[item], self.starts[item + 1])
        key, order = ordered(row[which] * self.num_classes + self.follower[position])
        if not len(key):
            return key, key
        first, _ = runs(key)
        votes = np.add.reduceat(self.count[position][order], first)
        key = key[first]
        if exclude:
            left = ~holds(distinct_keys(self.items, start, stop, self.num_classes), key)
            key, votes = key[left], votes[left]
        row, ids = np.divmod(key, self.num_classes)
        most = int(votes.max(initial=0)) + 1
        _, order = ordered(row * most + most - 1 - votes)  # ties by id
        return row[order], ids[order]


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
