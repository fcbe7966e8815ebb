"""Counts of what follows what in training: sparse, and of bounded size.

An event x is followed by the first events after its basket: the d-th of them, up to `window`,
adds 1/d to c(x, y), and `backward`/d to c(y, x). Of each item only the `keep` largest counts are
kept.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.data.baskets import basket_bounds
from tapas.ragged import Ids, Integers, chunks, ordered, places, runs

WINDOW = 5  # events
BACKWARD = 0.25
KEEP = 256  # followers of an item
PAIRS_AT_ONCE = 1 << 21


@dataclass(frozen=True, slots=True)
class Transitions:
    """The followers of item x are followers[starts[x]:starts[x + 1]], most frequent first."""

    starts: Tensor  # (C + 1,) int64
    followers: Tensor  # (E,) int32
    counts: Tensor  # (E,) float32, above 0

    @property
    def num_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self.starts, self.followers, self.counts))

    def rows(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """Followers (B, R, F) of `items` (B, R) and their counts; -1 and 0 are padding."""
        known = items.clamp(min=0)
        start, stop = self.starts[known], self.starts[known + 1]
        size = (stop - start).masked_fill(items < 0, 0)
        place = torch.arange(max(1, int(size.max())) if size.numel() else 1)
        real = place < size[:, :, None]
        position = (start[:, :, None] + place).masked_fill(~real, 0)
        if not len(self.followers):
            return torch.full_like(position, -1), torch.zeros(position.shape, dtype=torch.float64)
        found = self.followers[position].long().masked_fill(~real, -1)
        return found, self.counts[position].double().masked_fill(~real, 0.0)


def count_transitions(
    items: Integers,
    times: Integers,
    offsets: Integers,
    end: Integers,
    num_classes: int,
    *,
    window: int = WINDOW,
    backward: float = BACKWARD,
    keep: int = KEEP,
) -> Transitions:
    """Count the events of users u before end[u]; other arguments are those of an `EventLog`.

    `items` and `times` are (N,), `offsets` (U + 1,), `end` (U,). Memory beyond the result: some
    tens of bytes for each event, and `PAIRS_AT_ONCE` pairs.
    """
    _, next_basket = basket_bounds(times, offsets)
    limit = np.repeat(np.asarray(end, dtype=np.int64), np.diff(offsets))
    event = np.flatnonzero(next_basket < limit)  # those that are followed by another
    first, limit = next_basket[event], limit[event]
    frequency = np.bincount(items[event], minlength=num_classes)
    frequency += np.bincount(items[np.minimum(first, len(items) - 1)], minlength=num_classes)
    rows, columns, counts = [], [], []
    for some in chunks(frequency * window, PAIRS_AT_ONCE):
        row, column, count = _count(items, event, first, limit, some, window, backward)
        kept = _largest(row, count, keep)
        rows.append(row[kept])
        columns.append(column[kept].astype(np.int32))
        counts.append(count[kept].astype(np.float32))
    row = np.concatenate(rows) if rows else np.empty(0, np.int64)
    starts = np.append(0, np.cumsum(np.bincount(row, minlength=num_classes)))
    return Transitions(
        torch.from_numpy(starts),
        torch.from_numpy(np.concatenate(columns) if columns else np.empty(0, np.int32)),
        torch.from_numpy(np.concatenate(counts) if counts else np.empty(0, np.float32)),
    )


def counting_bytes(num_events: int, num_classes: int) -> int:
    """The most memory that `count_transitions` takes, its result included."""
    pairs = min(2 * WINDOW * num_events, KEEP * num_classes)
    return 8 * pairs + 8 * num_classes + 100 * num_events + 100 * min(pairs, PAIRS_AT_ONCE)


def _count(
    items: Integers,
    event: Ids,
    first: Ids,
    limit: Ids,
    ids: slice,
    window: int,
    backward: float,
) -> tuple[Ids, Ids, NDArray[np.float64]]:
    """Distinct pairs, ascending, of an item in the range `ids` and a follower; and their counts.

    The followers of event[i] are the events from first[i] on, before limit[i].
    """
    width = int(items.max()) + 1
    keys, weights = [], []
    earlier = items[event].astype(np.int64)
    for distance in range(1, window + 1):
        there = first + (distance - 1)
        real = there < limit
        x, y = earlier[real], items[there[real]].astype(np.int64)
        for source, other, weight in ((x, y, 1 / distance), (y, x, backward / distance)):
            mine = (source >= ids.start) & (source < ids.stop)
            keys.append(source[mine] * width + other[mine])
            weights.append(np.full(len(keys[-1]), weight))
    key, order = ordered(np.concatenate(keys))
    begins, _ = runs(key)
    if not len(key):
        return key, key, np.empty(0)
    count = np.add.reduceat(np.concatenate(weights)[order], begins)
    row, column = np.divmod(key[begins], width)
    positive = count > 0  # with backward=0 some have no count
    return row[positive], column[positive], count[positive]


def _largest(row: Ids, count: NDArray[np.float64], keep: int) -> Ids:
    """Indices of the `keep` largest `count` of each `row`, largest first, ties in their order."""
    by_count = np.argsort(-count, kind="stable")
    _, by_row = ordered(row[by_count])
    order = by_count[by_row]
    return order[places(row[order]) < keep]
