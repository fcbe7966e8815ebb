"""Batches of sequences for training: batch number i is a pure function of (log, seed, i).

Examples go by in a keyed random order, one order for each epoch, that is computed and not
stored; a resumed run therefore sees just the batches that the killed one would have seen.
Items of one basket (equal time) are predicted together: only the last item of a basket has
a query that counts, and its targets begin with the next basket.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.errors import DataError, UsageError
from tapas.permutation import Permutation
from tapas.rng import stream
from tapas.shapes import check_positive

IGNORED = -100  # what heads take for "no target", as torch's cross_entropy does
Array = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """Histories and what came after them."""

    items: Tensor  # (B, T) int64, at the left of their row; 0 behind the end
    lengths: Tensor  # (B,)
    places: Tensor  # (Q,) positions in the flattened (B*T,) that predict
    target: Tensor  # (Q, K) int64, the next K items of each; -100 pads


class Windows:
    """Training examples of a log: stretches of up to `length` events of one user.

    `positions="all"` cuts each user's events into stretches and predicts from every basket
    of a stretch; `"last"` makes an example of every basket, with the events before it.
    """

    def __init__(
        self,
        items: Array,
        times: Array,
        offsets: Array,
        train_end: Array,
        *,
        length: int = 50,
        next_items: int = 5,
        positions: str = "all",
        batch_size: int = 64,
        seed: int = 0,
    ):
        if positions not in ("all", "last"):
            raise UsageError(f"positions must be all or last, got {positions!r}.")
        self.items, self.offsets, self.train_end = items, offsets, train_end
        self.length = check_positive("length", length)
        self.next_items = check_positive("next_items", next_items)
        self.positions, self.seed = positions, seed
        self._predicts = predicting_events(times, offsets, train_end)
        if positions == "last":
            self._ends = np.flatnonzero(self._predicts) + 1
        else:
            self._ends = _window_ends(self._predicts, offsets, train_end, length)
        if not len(self._ends):
            raise DataError(
                "no user has two baskets to train on: there is no next item to learn. Use a longer "
                "log, a later cut, or check that --time is the right column."
            )
        self.batch_size = min(check_positive("batch_size", batch_size), len(self._ends))
        self._order: tuple[int, Permutation] | None = None

    @property
    def num_examples(self) -> int:
        return len(self._ends)

    @property
    def steps_per_epoch(self) -> int:
        """The last few examples of an epoch, too few for a batch, wait for another order."""
        return self.num_examples // self.batch_size

    def batch(self, number: int) -> SequenceBatch:
        """Batch `number`, counted from 0 over all epochs."""
        epoch, place = divmod(number, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            order = Permutation(self.num_examples, stream(self.seed, "epoch", epoch))
            self._order = (epoch, order)
        first = place * self.batch_size
        chosen = self._order[1].permute(torch.arange(first, first + self.batch_size, device="cpu"))
        end = self._ends[chosen.numpy()]
        user = np.searchsorted(self.offsets, end - 1, side="right") - 1
        items, lengths, event = gather_histories(self.items, self.offsets[user], end, self.length)
        real = np.arange(self.length) < lengths[:, None]
        if self.positions == "last":
            predicts = np.arange(self.length) == lengths[:, None] - 1
        else:
            predicts = real & self._predicts[event]
        row, _ = np.nonzero(predicts)
        follows = event[predicts][:, None] + np.arange(1, self.next_items + 1)
        inside = follows < self.train_end[user[row]][:, None]
        target = np.where(inside, self.items[np.where(inside, follows, 0)], IGNORED)
        return SequenceBatch(
            items=torch.from_numpy(items),
            lengths=torch.from_numpy(lengths),
            places=torch.from_numpy(np.flatnonzero(predicts)),
            target=torch.from_numpy(target.astype(np.int64)),
        )


def gather_histories(
    items: Array, start: Array, end: Array, length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The last `length` of events start[b]:end[b], (B, T), their number, and their places.

    Behind the end of a row items are 0 and places are the row's last event.
    """
    start = np.maximum(start, end - length)
    lengths = (end - start).astype(np.int64)
    event = start[:, None] + np.arange(length)
    event = np.minimum(event, end[:, None] - 1).astype(np.int64)
    found = np.where(np.arange(length) < lengths[:, None], items[event], 0)
    return found.astype(np.int64), lengths, event


def predicting_events(times: Array, offsets: Array, train_end: Array) -> NDArray[np.bool_]:
    """(N,) True where the next event is the same user's, later, and still for training."""
    num_events = len(times)
    starts = np.zeros(num_events + 1, dtype=np.int8)
    np.add.at(starts, offsets[:-1], 1)
    np.add.at(starts, train_end, -1)
    training = np.cumsum(starts, dtype=np.int8)[:-1].astype(bool)
    predicts = np.zeros(num_events, dtype=bool)
    if num_events > 1:
        np.not_equal(times[1:], times[:-1], out=predicts[:-1])
        predicts[:-1] &= training[1:]
        predicts &= training
        predicts[offsets[1:] - 1] = False  # what follows is another user's
    return predicts


def _window_ends(
    predicts: NDArray[np.bool_], offsets: Array, train_end: Array, length: int
) -> NDArray[np.int64]:
    """Ends of the stretches of `length` that cover each user's events but the last."""
    usable = np.maximum(train_end - offsets[:-1] - 1, 0)
    count = -(-usable // length)
    user = np.repeat(np.arange(len(usable)), count)
    number = np.arange(len(user)) - np.repeat(np.cumsum(count) - count, count)
    end: NDArray[np.int64] = (train_end[user] - 1 - number * length).astype(np.int64)
    start = np.maximum(offsets[user], end - length)
    so_far = np.concatenate([[0], np.cumsum(predicts)])
    return np.asarray(end[so_far[end] > so_far[start]])
