"""Baskets: the events of a user that have the same time, and whose order says nothing."""

import numpy as np
from numpy.typing import NDArray

from tapas.ragged import Ids, Integers


def basket_bounds(times: Integers, offsets: Integers) -> tuple[Ids, Ids]:
    """Start and end (exclusive) of the basket of each event, (N,) each.

    >>> basket_bounds(np.array([3, 3, 4, 4]), np.array([0, 3, 4]))
    (array([0, 0, 2, 3]), array([2, 2, 3, 4]))
    """
    new = np.ones(len(times) + 1, dtype=bool)
    np.not_equal(times[1:], times[:-1], out=new[1:-1])
    new[offsets] = True
    starts = np.flatnonzero(new)
    basket = np.cumsum(new[:-1]) - 1
    return starts[basket], starts[basket + 1]


def next_baskets(times: Integers, events: Ids, limits: Ids) -> tuple[Ids, Ids]:
    """Start and end (exclusive) of the basket after that of each of `events` (M,).

    `limits` (M,) are where the users of these events end: there is nothing after the last basket.

    >>> next_baskets(np.array([3, 3, 4, 4]), np.array([0, 2]), np.array([4, 4]))
    (array([2, 4]), array([4, 4]))
    """
    start = _basket_ends(times, events, limits)
    return start, _basket_ends(times, start, limits)


def _basket_ends(times: Integers, events: Ids, limits: Ids) -> Ids:
    """The first event after each of `events` with another time, at most `limits`."""
    ends = np.minimum(events + 1, limits)
    inside = np.flatnonzero(ends < limits)
    while len(inside):
        inside = inside[times[ends[inside]] == times[events[inside]]]
        ends[inside] += 1
        inside = inside[ends[inside] < limits[inside]]
    return ends


def baskets_ago(times: NDArray[np.integer], lengths: Integers) -> NDArray[np.int64]:
    """How many baskets ago each event of B histories was: (B, W), 1 for the last basket.

    Row b of `times` (B, W) has the times of lengths[b] events, oldest first; what comes after is
    padding and gets 0.

    >>> baskets_ago(np.array([[5, 5, 7, 9], [2, 2, 2, 2]]), np.array([4, 2]))
    array([[3, 3, 2, 1],
           [1, 1, 0, 0]])
    """
    width = times.shape[1]
    real = np.arange(width) < np.asarray(lengths)[:, None]
    later = np.zeros(times.shape, dtype=np.int64)
    if width > 1:
        ends = (times[:, 1:] != times[:, :-1]) & real[:, 1:]
        later[:, :-1] = np.cumsum(ends[:, ::-1], axis=1)[:, ::-1]
    return np.where(real, later + 1, 0)
