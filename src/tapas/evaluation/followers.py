"""Counts of which items follow which, in training."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tapas.ragged import Ids, Integers, chunks, ordered, places, runs, spans

PAIRS_PER_CHUNK = 1 << 22


def following(
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


def count_followers(
    items: Integers, first: Ids, last: Ids, wanted: NDArray[np.bool_], keep: int
) -> tuple[Ids, Ids, Ids]:
    """The `keep` most frequent followers of each `wanted` item, most frequent first, ties by id.

    The followers of event i are items[first[i]:last[i]]; `wanted` is (C,). Returns `starts`
    (C + 1,) and, from starts[item] to starts[item + 1], the followers and the count of each.
    """
    num_classes = len(wanted)
    events = np.flatnonzero((last > first) & wanted[items])
    item, order = ordered(items[events].astype(np.int64))
    events = events[order]
    first, last = first[events], last[events]
    found = [_Pairs.none()]
    unfinished = found[0]  # pairs of the last item, whose events may go on in the next chunk
    for some in chunks(last - first, PAIRS_PER_CHUNK):
        position, which = spans(first[some], last[some])
        pairs = _Pairs.counted((item[some] * num_classes)[which] + items[position])
        pairs = pairs.plus(unfinished)
        done = int(np.searchsorted(pairs.pair, item[some][-1] * num_classes))
        found.append(pairs.part(slice(done)).most_frequent(num_classes, keep))
        unfinished = pairs.part(slice(done, None))
    found.append(unfinished.most_frequent(num_classes, keep))
    pair = np.concatenate([part.pair for part in found])
    item, follower = np.divmod(pair, max(1, num_classes))
    starts = np.append(0, np.cumsum(np.bincount(item, minlength=num_classes)))
    return starts, follower, np.concatenate([part.count for part in found])


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of an item and a follower, as item * num_classes + follower, and their counts."""

    pair: Ids
    count: Ids

    @staticmethod
    def none() -> "_Pairs":
        return _Pairs(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))

    @staticmethod
    def counted(pair: Ids) -> "_Pairs":
        """Ascending distinct pairs."""
        pair, _ = ordered(pair)
        first, size = runs(pair)
        return _Pairs(pair[first], size)

    def plus(self, other: "_Pairs") -> "_Pairs":
        """Both, ascending, with the counts of equal pairs added."""
        if not len(other.pair):
            return self
        pair, order = ordered(np.append(self.pair, other.pair))
        first, _ = runs(pair)
        count = np.append(self.count, other.count)[order]
        return _Pairs(pair[first], np.add.reduceat(count, first))

    def part(self, some: slice) -> "_Pairs":
        return _Pairs(self.pair[some], self.count[some])

    def most_frequent(self, num_classes: int, keep: int) -> "_Pairs":
        """The `keep` most frequent of each item, most frequent first, ties by follower."""
        first, size = runs(self.pair // max(1, num_classes))
        item = np.repeat(np.arange(len(size)), size)
        # most pairs occur once: these are in order and come last
        often = np.flatnonzero(self.count > 1)
        num_often = np.bincount(item[often], minlength=len(size))
        most = int(self.count.max(initial=0)) + 1
        often = often[ordered(item[often] * most + (most - 1) - self.count[often])[1]]
        once = np.flatnonzero(self.count == 1)
        order = np.empty(len(item), dtype=np.int64)
        order[first[item[often]] + places(item[often])] = often
        order[first[item[once]] + num_often[item[once]] + places(item[once])] = once
        best = order[places(item) < keep]
        return _Pairs(self.pair[best], self.count[best])
