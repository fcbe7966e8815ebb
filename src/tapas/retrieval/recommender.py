"""What next, for people whose history is known."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.errors import UsageError
from tapas.shapes import check_positive

BATCH = 256

Encode = Callable[[Tensor, Tensor], Any]
TopK = Callable[[Any, int, Tensor | None], tuple[Tensor, Tensor]]


class Recommender:
    """Histories in, ranked class ids out; from a run or from an export.

    `encode(items, lengths)` turns (B, T = history_length) int64 ids, the oldest first and
    from column 0 on, zeros behind, and (B,) lengths into what `topk` ranks by: queries (B, D),
    or a model's whole reading. `topk(query, k, exclude)` gives scores and ids, (B, k) each,
    without the classes in `exclude` (B, E), if any, where -1 is padding.
    """

    def __init__(self, *, encode: Encode, topk: TopK, history_length: int):
        self.encode, self.topk = encode, topk
        self.history_length = check_positive("history_length", history_length)

    def recommend(
        self, histories: Sequence[NDArray[np.integer]], k: int, *, exclude_seen: bool
    ) -> tuple[Tensor, Tensor]:
        """Scores and ids of the k best classes for each of B histories, (B, k) each.

        A history is (H,) class ids, the oldest first; the model sees its last
        `history_length`. `exclude_seen` leaves out all of it. Where fewer than k classes
        remain, ids end in -1 and scores in -inf.
        """
        check_positive("k", k)
        for place, history in enumerate(histories):
            _check(place, history)
        parts = list(self._parts(histories, k, exclude_seen))
        if not parts:
            return torch.empty(0, k), torch.empty(0, k, dtype=torch.int64)
        return torch.cat([scores for scores, _ in parts]), torch.cat([ids for _, ids in parts])

    def _parts(
        self, histories: Sequence[NDArray[np.integer]], k: int, exclude_seen: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(histories), BATCH):
            batch = histories[start : start + BATCH]
            recent = [history[-self.history_length :] for history in batch]
            lengths = torch.tensor([len(history) for history in recent])
            seen = [np.unique(history) for history in batch]
            with torch.no_grad():
                query = self.encode(_stack(recent, self.history_length, 0), lengths)
                exclude = _stack(seen, max(map(len, seen)), -1) if exclude_seen else None
                yield self.topk(query, k, exclude)


def _stack(rows: Sequence[NDArray[np.integer]], width: int, padding: int) -> Tensor:
    """(B, width) int64 with each row from column 0 on and `padding` behind."""
    stacked = np.full((len(rows), width), padding, dtype=np.int64)
    for place, row in enumerate(rows):
        stacked[place, : len(row)] = row
    return torch.from_numpy(stacked)


def _check(place: int, history: NDArray[np.integer]) -> None:
    if np.ndim(history) != 1:
        raise UsageError(f"history {place} has shape {np.shape(history)}; expected (H,) class ids.")
    if not len(history):
        raise UsageError(
            f"history {place} is empty: there is nothing to go by. Recommend the most popular "
            "instead, or give --history."
        )
    if not np.issubdtype(history.dtype, np.integer):
        raise UsageError(f"history {place} has dtype {history.dtype}; expected class ids.")
    if history.min() < 0:
        raise UsageError(f"history {place} holds class {history.min()}; ids start at 0.")
