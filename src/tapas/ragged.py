"""Lists of different lengths, one for each row, as flat arrays: no loop over users.

A pair of a row and an id is the number row * num_classes + id, its key. Keys that ascend are
sorted by row and then by id.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Integers = NDArray[np.integer]


def chunks(sizes: Integers, most: int) -> Iterator[slice]:
    """Slices of consecutive rows whose `sizes` (P,) sum to at most `most`, or of a single row."""
    ends = np.cumsum(sizes, dtype=np.int64)
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(first, last)
        first = last


def spans(start: Integers, stop: Integers) -> tuple[Ids, Ids]:
    """The numbers start[i] .. stop[i] - 1 of all rows i, (M,), and the row of each, (M,).

    >>> spans(np.array([5, 9, 2]), np.array([7, 9, 3]))
    (array([5, 6, 2]), array([0, 0, 2]))
    """
    lengths = (stop - start).astype(np.int64)
    row = np.repeat(np.arange(len(lengths)), lengths)
    shift = start - (np.cumsum(lengths) - lengths)
    return np.arange(len(row)) + shift[row], row


def ordered(key: Ids) -> tuple[Ids, Ids]:
    """`key` (M,) sorted, and where each came from; equal keys stay in their order."""
    found = torch.from_numpy(key).sort(stable=True)  # several times as fast as numpy
    return found.values.numpy(), found.indices.numpy()


def runs(key: Ids) -> tuple[Ids, Ids]:
    """Where each run of equal numbers of an ascending `key` (M,) begins, and how long it is.

    >>> runs(np.array([4, 4, 4, 7, 9, 9]))
    (array([0, 3, 4]), array([3, 1, 2]))
    """
    new = np.ones(len(key), dtype=bool)
    np.not_equal(key[1:], key[:-1], out=new[1:])
    first = np.flatnonzero(new)
    return first, np.diff(first, append=len(key))


def places(row: Ids) -> Ids:
    """The place of each element within its row, from 0; `row` (M,) ascends.

    >>> places(np.array([0, 0, 0, 3, 3]))
    array([0, 1, 2, 0, 1])
    """
    first, size = runs(row)
    return np.arange(len(row)) - np.repeat(first, size)


def distinct_keys(items: Integers, start: Integers, stop: Integers, num_classes: int) -> Ids:
    """Ascending distinct keys of the `items` at start[i]:stop[i] of each row i."""
    position, row = spans(start, stop)
    key, _ = ordered(row * num_classes + items[position])
    return key[runs(key)[0]]


def holds(keys: Ids, wanted: Ids) -> NDArray[np.bool_]:
    """True where `wanted`, of any shape, is among the ascending `keys`."""
    if not len(keys):
        return np.zeros(wanted.shape, dtype=bool)
    place = np.searchsorted(keys, wanted)
    return np.asarray(keys[np.minimum(place, len(keys) - 1)] == wanted)


def padded(row: Ids, ids: Ids, num_rows: int) -> Ids:
    """`ids` (M,) of ascending `row` (M,) as (num_rows, longest), at least 1 wide, ended by -1."""
    place = places(row)
    table = np.full((num_rows, int(place.max(initial=0)) + 1), -1, dtype=np.int64)
    table[row, place] = ids
    return table
