"""Sequences by their length, so that little is padded when those of a group are side by side."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tapas.encoders.base import Places

LEAST_GROUP = 8  # events of the longest sequence that is in a group with all shorter ones


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences of like length, whose events come one after the other."""

    events: slice  # of all events, sequence after sequence
    num_sequences: int
    width: int  # events of the longest
    row: Tensor  # (K,) which sequence of the group each of its events is of
    time: Tensor  # (K,) which event of its sequence it is, from 0


@dataclass(frozen=True, slots=True)
class Packed:
    """The events of `Places` by the length of their sequences, without padding.

    Sequences without events are left out.
    """

    sequences: Tensor  # (S,) the sequences in this order, shortest first
    order: Tensor  # (N,) the events of `Places` in this order
    inverse: Tensor  # (N,) where they are
    groups: list[Group]

    @classmethod
    def of(cls, places: Places) -> Self:
        """Sequences are sorted by length; a group ends where it has doubled."""
        lengths, sequence = places.lengths.sort(stable=True)
        begin = (places.lengths.cumsum(0) - places.lengths)[sequence]  # in `places`
        ends = lengths.cumsum(0)
        row = torch.repeat_interleave(lengths, output_size=len(places.index))
        number = torch.arange(len(row), device=row.device)
        time = number - (ends - lengths)[row]
        order = begin[row] + time
        inverse = torch.empty_like(order).index_copy(0, order, number)
        groups, first = list[Group](), int((lengths == 0).sum())
        while first < len(lengths):
            most = max(LEAST_GROUP, 2 * int(lengths[first]))
            last = int(torch.searchsorted(lengths, most, right=True))
            width = int(lengths[last - 1])
            events = slice(int(ends[first] - lengths[first]), int(ends[last - 1]))
            groups.append(Group(events, last - first, width, row[events] - first, time[events]))
            first = last
        return cls(sequence[lengths > 0], order, inverse, groups)
