"""Events in the order of a prepared log: by user, by time, by a keyed hash within a basket.

A basket is the events of one user with the same time. It is a set: duplicate items are removed,
and the items are ordered by a hash of (user, time, item), so that models cannot exploit the order
of the file. The result depends neither on the order of the input nor on random numbers.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

HASH_KEY = 0x7461_7061_732D_6C6F
UNITS = (
    86_400_000_000,
    1_000_000,
    1_000,
)  # of times in microseconds, that all times may be multiples of
MAX_UINT64 = 2**64 - 1


@dataclass(slots=True)
class SortedEvents:
    """Events in order; `first` marks the first event of each basket."""

    user: NDArray[np.uint32]  # (N,) codes, sorted
    time: NDArray[np.int64]  # (N,)
    item: NDArray[np.uint32]  # (N,) codes
    first: NDArray[np.bool_]  # (N,)
    weight: NDArray[np.float64] | None = None  # (N,)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the events where `mask` is False."""
        self.user, self.time, self.item = self.user[mask], self.time[mask], self.item[mask]
        self.weight = None if self.weight is None else self.weight[mask]
        self.first = _basket_starts(self.user, self.time)


def sort_events(
    user: NDArray[np.uint32], time: NDArray[np.int64], item: NDArray[np.uint32]
) -> tuple[SortedEvents, int]:
    """Sort events (N,) and remove duplicates; returns them and the number removed."""
    user, time, item = _sorted(user, time, item)
    first = _basket_starts(user, time)
    shared = ~first  # events that are not alone in their basket
    shared[:-1] |= ~first[1:]
    rows = np.flatnonzero(shared)
    events = SortedEvents(user, time, item, first)
    if not rows.size:
        return events, 0
    basket = np.cumsum(first[rows], dtype=np.uint64)
    bits = 64 - int(basket[-1]).bit_length()  # at least 32, as many as are left: more mix better
    sort_key = (basket << np.uint64(bits)) | _shuffled(item[rows], user[rows], time[rows], bits)
    order = _order(sort_key)
    item[rows] = item[rows][order]
    sort_key = sort_key[order]
    repeated = np.zeros(len(user), dtype=np.bool_)
    repeated[rows[1:]] = sort_key[1:] == sort_key[:-1]
    num_repeated = int(np.count_nonzero(repeated))
    if num_repeated:
        events.keep(~repeated)
    return events, num_repeated


def in_file_order(time: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each of `time` (N,) in their order, equal ones in the order of the file."""
    place = np.empty(len(time), dtype=np.int64)
    place[np.argsort(time, kind="stable")] = np.arange(len(time))
    return place


def _sorted(
    user: NDArray[np.uint32], time: NDArray[np.int64], item: NDArray[np.uint32]
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint32]]:
    """The events sorted by user and time, as new arrays.

    Integers sort many times faster than rows, so user, time and item are packed into one uint64
    as far as they fit.
    """
    low, num_items = int(time.min()), int(item.max()) + 1
    unit, ticks = _ticks(time, low)
    num_ticks, num_users = int(ticks.max()) + 1, int(user.max()) + 1
    if num_users * num_ticks > MAX_UINT64:
        frame = pl.DataFrame({"user": user, "time": time})
        order = frame.select(pl.arg_sort_by("user", "time")).to_series().to_numpy()
        return user[order], time[order], item[order]
    packed = user * np.uint64(num_ticks)
    packed += ticks
    del ticks
    if num_users * num_ticks * num_items > MAX_UINT64:
        order = _order(packed)
        return user[order], time[order], item[order]
    packed *= np.uint64(num_items)
    packed += item
    packed.sort()
    rest = packed // np.uint64(num_items)
    item = (packed - rest * np.uint64(num_items)).astype(np.uint32)
    np.floor_divide(rest, np.uint64(num_ticks), out=packed)
    user = packed.astype(np.uint32)
    packed *= np.uint64(num_ticks)
    rest -= packed
    time = rest.view(np.int64)
    time *= unit
    time += low
    return user, time, item


def _ticks(time: NDArray[np.int64], low: int) -> tuple[int, NDArray[np.uint64]]:
    """The largest of `UNITS` that divides all times since `low`, and these times in that unit."""
    since = time - low  # may overflow int64, which is correct as uint64
    if int(time.max()) - low >= 2**63:
        return 1, since.view(np.uint64)
    for unit in UNITS:
        if not (since[:1000] % unit).any():
            ticks = since // unit
            ticks *= unit
            if np.array_equal(ticks, since):
                ticks //= unit
                return unit, ticks.view(np.uint64)
    return 1, since.view(np.uint64)


def _order(packed: NDArray[np.uint64]) -> NDArray[np.uint32]:
    order: NDArray[np.uint32] = pl.Series(packed).arg_sort().to_numpy()
    return order


def _basket_starts(user: NDArray[np.uint32], time: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True at the first event of each basket, (N,)."""
    first = np.ones(len(user), dtype=np.bool_)
    first[1:] = (user[1:] != user[:-1]) | (time[1:] != time[:-1])
    return first


def _shuffled(
    item: NDArray[np.uint32], user: NDArray[np.uint32], time: NDArray[np.int64], bits: int
) -> NDArray[np.uint64]:
    """Item codes mapped one-to-one to `bits` bits, by a different permutation in each basket."""
    mask, shift = np.uint64((1 << bits) - 1), np.uint64(bits // 2)
    salt = splitmix64(
        splitmix64(user.astype(np.uint64) ^ np.uint64(HASH_KEY)) ^ time.view(np.uint64)
    )
    code = (item ^ salt) & mask
    for _ in range(3):
        salt = splitmix64(salt)
        code *= salt | np.uint64(1)  # an odd factor is invertible
        code &= mask
        code ^= code >> shift
    return code


def splitmix64(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 finalizer, a one-to-one hash of 64-bit integers."""
    value = value + np.uint64(0x9E37_79B9_7F4A_7C15)
    value ^= value >> np.uint64(30)
    value *= np.uint64(0xBF58_476D_1CE4_E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D0_49BB_1331_11EB)
    value ^= value >> np.uint64(31)
    return value
