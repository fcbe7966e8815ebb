"""Batches of training sequences: batch i is a pure function of (log, seed, i).

Examples come in a keyed random order, a new one in each epoch, which is computed and not stored,
so a resumed run sees exactly the batches that the interrupted one would have seen. The items of a
basket (events of equal time) are predicted together: only the last item of a basket predicts,
and its targets start with the next basket.
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

IGNORED = -100  # padding of targets, the ignore_index of heads and of torch's cross_entropy
Array = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """Histories and the items that follow them."""

    items: Tensor  # (B, T) int64, padded with 0 at the end of each row
    lengths: Tensor  # (B,) events of each row
    query_index: Tensor  # (Q,) index of each query in the flattened (B*T,) items
    target: Tensor  # (Q, K) int64, the next K items of each, padded with -100
    weight: Tensor | None = None  # (Q, K) weights of the targets' events, 0 for padding


class Windows:
    """Training examples of a log: windows of up to `length` consecutive events of one user.

    `positions="all"` cuts the events of each user into windows and predicts from every basket of a
    window; `"last"` makes one example of each basket: the window that ends with it predicts what
    follows. Each example has up to `next_items` targets. `items`, `times` (N,), `offsets` (U+1,)
    and `weights` (N,) are those of an `EventLog`, `train_end` (U,) that of a `Split`. Batches have
    weights divided by their mean over the training events.

    Raises `DataError` if no user has two baskets to train on.
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
        weights: NDArray[np.float32] | None = None,
    ):
        if positions not in ("all", "last"):
            raise UsageError(f"positions must be all or last, got {positions!r}.")
        self.items, self.offsets, self.train_end = items, offsets, train_end
        self.length = check_positive("length", length)
        self.next_items = check_positive("next_items", next_items)
        self.positions, self.seed = positions, seed
        self.weights, self._mean_weight = weights, 1.0
        if weights is not None:
            training = training_events(len(items), offsets, train_end)
            self._mean_weight = float(np.mean(weights, where=training, dtype=np.float64))
        self._predicts = predicting_events(times, offsets, train_end)
        if positions == "last":
            self._ends = np.flatnonzero(self._predicts) + 1
        else:
            self._ends = _window_ends(self._predicts, offsets, train_end, length)
        if not len(self._ends):
            raise DataError(
                "no user has two baskets to train on, so there is no next item to learn. Use a "
                "longer log or a later cut, or check that --time is the right column."
            )
        self.batch_size = min(check_positive("batch_size", batch_size), len(self._ends))
        self._order: tuple[int, Permutation] | None = None

    @property
    def num_examples(self) -> int:
        return len(self._ends)

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in an epoch; the few examples left over are skipped in that epoch."""
        return self.num_examples // self.batch_size

    def batch(self, number: int) -> SequenceBatch:
        """Batch `number`, counted from 0 over all epochs."""
        epoch, position = divmod(number, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            order = Permutation(self.num_examples, stream(self.seed, "epoch", epoch))
            self._order = (epoch, order)
        first = position * self.batch_size
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
        follows = np.where(inside, follows, 0)
        target = np.where(inside, self.items[follows], IGNORED)
        weight = None
        if self.weights is not None:
            each = np.where(inside, self.weights[follows] / self._mean_weight, 0)
            weight = torch.from_numpy(each.astype(np.float32))
        return SequenceBatch(
            items=torch.from_numpy(items),
            lengths=torch.from_numpy(lengths),
            query_index=torch.from_numpy(np.flatnonzero(predicts)),
            target=torch.from_numpy(target.astype(np.int64)),
            weight=weight,
        )


def gather_histories(
    items: Array, start: Array, end: Array, length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The last `length` events of each range start[b]:end[b], as rows.

    Returns the items (B, T), padded with 0, the number of events of each row (B,), and the
    positions of the events in `items` (B, T), padded with the row's last one.
    """
    start = np.maximum(start, end - length)
    lengths = (end - start).astype(np.int64)
    event = start[:, None] + np.arange(length)
    event = np.minimum(event, end[:, None] - 1).astype(np.int64)
    found = np.where(np.arange(length) < lengths[:, None], items[event], 0)
    return found.astype(np.int64), lengths, event


def predicting_events(times: Array, offsets: Array, train_end: Array) -> NDArray[np.bool_]:
    """True where the next event is of the same user, later, and a training event: (N,)."""
    num_events = len(times)
    training = training_events(num_events, offsets, train_end)
    predicts = np.zeros(num_events, dtype=bool)
    if num_events > 1:
        np.not_equal(times[1:], times[:-1], out=predicts[:-1])
        predicts[:-1] &= training[1:]
        predicts &= training
        predicts[offsets[1:] - 1] = False  # the next event is another user's
    return predicts


def training_events(num_events: int, offsets: Array, train_end: Array) -> NDArray[np.bool_]:
    """True for training events, those of user u in offsets[u]:train_end[u]: (N,)."""
    starts = np.zeros(num_events + 1, dtype=np.int8)
    np.add.at(starts, offsets[:-1], 1)
    np.add.at(starts, train_end, -1)
    return np.cumsum(starts, dtype=np.int8)[:-1].astype(bool)


def _window_ends(
    predicts: NDArray[np.bool_], offsets: Array, train_end: Array, length: int
) -> NDArray[np.int64]:
    """Ends of the windows that cover each user's training events but the last, (W,).

    Windows from which no basket predicts are left out.
    """
    usable = np.maximum(train_end - offsets[:-1] - 1, 0)
    count = -(-usable // length)
    user = np.repeat(np.arange(len(usable)), count)
    number = np.arange(len(user)) - np.repeat(np.cumsum(count) - count, count)
    end: NDArray[np.int64] = (train_end[user] - 1 - number * length).astype(np.int64)
    start = np.maximum(offsets[user], end - length)
    so_far = np.concatenate([[0], np.cumsum(predicts)])
    return np.asarray(end[so_far[end] > so_far[start]])
