"""Where models are judged: several points of every held-out user, in blocks for intervals."""

import numpy as np
from numpy.typing import NDArray

from tapas.data.event_log import EventLog
from tapas.data.splits import Points
from tapas.rng import stream

NUM_BLOCKS = 50


def spread_points(log: EventLog, held_out: Points, most: int, *, seed: int = 0) -> Points:
    """About `most` beginnings of baskets inside `held_out`, as many of each user as can be.

    In random order, so that the first of them are as good a sample as all.
    """
    if not len(held_out):
        return held_out
    draw = np.random.default_rng(stream(seed, "judged points").initial_seed())
    each = -(-most // len(held_out))
    user, point, limit = [], [], []
    for u, first, last in zip(held_out.user, held_out.point, held_out.limit, strict=True):
        time = log.times[first:last]
        begins = first + np.flatnonzero(np.append(True, time[1:] != time[:-1]))
        chosen = draw.permutation(begins)[:each]
        point.append(chosen)
        user.append(np.full(len(chosen), u))
        limit.append(np.full(len(chosen), last))
    order = draw.permutation(sum(map(len, point)))[:most]
    parts = (np.concatenate(p).astype(np.int64)[order] for p in (user, point, limit))
    return Points(*parts)


def block_sums(value: NDArray[np.float64], user: NDArray[np.int64]) -> list[float]:
    """Sums of `value` (P,) over blocks of users, (50,).

    All points of a user fall into one block, so that blocks are independent where the points
    of one user are not; intervals are made by resampling blocks.
    """
    sums = np.bincount(user % NUM_BLOCKS, weights=value, minlength=NUM_BLOCKS)
    return [round(float(s), 5) for s in sums]
