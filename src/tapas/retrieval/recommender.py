"""Recommendation of the next items for given histories."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.errors import UsageError
from tapas.shapes import check_positive

BATCH_SIZE = 256

Encode = Callable[[Tensor, Tensor], Any]
TopK = Callable[[Any, int, Tensor | None], tuple[Tensor, Tensor]]


class Recommender:
    """Ranks classes for histories, with the model of a run or of an export.

    `encode(items, lengths)` takes ids (B, T = history_length) int64, oldest first and padded with
    0 at the end, and lengths (B,), and returns what `topk` takes: queries (B, D), or any other
    state of a model. `topk(query, k, exclude)` returns scores and ids, (B, k) each, without the
    classes in `exclude` (B, E), where -1 is padding; `exclude` may be None.
    """

    def __init__(self, *, encode: Encode, topk: TopK, history_length: int):
        self.encode, self.topk = encode, topk
        self.history_length = check_positive("history_length", history_length)

    def recommend(
        self, histories: Sequence[NDArray[np.integer]], k: int, *, exclude_seen: bool
    ) -> tuple[Tensor, Tensor]:
        """Scores and ids of the k best classes for each of B histories, (B, k) each.

        A history is (H,) class ids, oldest first, of which the model sees the last
        `history_length`. `exclude_seen` leaves out all classes of the history. Where fewer than k
        classes remain, ids end in -1 and scores in -inf. Raises `UsageError` for an empty or
        malformed history.
        """
        check_positive("k", k)
        for number, history in enumerate(histories):
            _check(number, history)
        batches = list(self._batches(histories, k, exclude_seen))
        if not batches:
            return torch.empty(0, k), torch.empty(0, k, dtype=torch.int64)
        return torch.cat([scores for scores, _ in batches]), torch.cat([ids for _, ids in batches])

    def _batches(
        self, histories: Sequence[NDArray[np.integer]], k: int, exclude_seen: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(histories), BATCH_SIZE):
            batch = histories[start : start + BATCH_SIZE]
            recent = [history[-self.history_length :] for history in batch]
            lengths = torch.tensor([len(history) for history in recent])
            seen = [np.unique(history) for history in batch]
            with torch.no_grad():
                query = self.encode(_stack(recent, self.history_length, 0), lengths)
                exclude = _stack(seen, max(map(len, seen)), -1) if exclude_seen else None
                yield self.topk(query, k, exclude)


def _stack(rows: Sequence[NDArray[np.integer]], width: int, padding: int) -> Tensor:
    """`rows` as one int64 tensor (B, width), padded at the end."""
    stacked = np.full((len(rows), width), padding, dtype=np.int64)
    for number, row in enumerate(rows):
        stacked[number, : len(row)] = row
    return torch.from_numpy(stacked)


def _check(number: int, history: NDArray[np.integer]) -> None:
    if np.ndim(history) != 1:
        raise UsageError(
            f"history {number} has shape {np.shape(history)}; expected (H,) class ids."
        )
    if not len(history):
        raise UsageError(
            f"history {number} is empty, so there is nothing to predict from. Recommend the most "
            "popular items instead, or give --history."
        )
    if not np.issubdtype(history.dtype, np.integer):
        raise UsageError(f"history {number} has dtype {history.dtype}; expected integer class ids.")
    if history.min() < 0:
        raise UsageError(f"history {number} contains class {history.min()}; ids start at 0.")
