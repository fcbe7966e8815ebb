"""A model that ranks the histories of many requests in one pass over its rows."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from msgspec import Struct, field
from numpy.typing import NDArray
from torch import Tensor

from tapas.data.baskets import baskets_ago
from tapas.data.item_table import ItemTable
from tapas.errors import DataError
from tapas.retrieval.recommender import Prediction, Recommender

Ids = NDArray[np.int64]
NONE = np.empty(0, dtype=np.int64)


class Query(Struct, frozen=True):
    """A history to rank items after, and which of them."""

    items: Ids  # (n,) of the history, the oldest first
    times: NDArray[np.integer] | None = None  # (n,) equal in a basket; None: one item a basket
    exclude: Ids = field(default_factory=lambda: NONE)  # never listed
    allow: Ids | None = None  # the only ones that are


class Ranked(Struct, frozen=True):
    """The list of one query."""

    ids: Ids  # (k,), fewer where no more items are left
    scores: NDArray[np.float32]  # probabilities, if the method has them
    parts: NDArray[np.float64] | None = None  # (k, parts) what they add to the probabilities
    part_names: tuple[str, ...] = ()


class ServedModel:
    """A trained model under the name that clients know."""

    is_approximate = False
    table: ItemTable | None = None  # what else is known of its items, by id

    def __init__(self, name: str, model: Recommender, step: int | None):
        self.name, self.model, self.step = name, model, step

    @property
    def num_items(self) -> int:
        return self.model.num_items

    def prepare(self) -> None:
        """Work out now what the first request would wait for."""
        self.training_counts.sum()
        self.model.item_keys.known_ids([""])  # sorts the keys

    @cached_property
    def training_counts(self) -> NDArray[np.int64]:
        return self.model.training_counts()

    def rank_by_frequency(self, id: int) -> int:
        """The place of an item among all that can be recommended, 1 for the most frequent one."""
        counts, rare = self.training_counts, self.model.item_keys.rare_id
        before = counts > counts[id]
        before[:id] |= counts[:id] == counts[id]
        if rare is not None:
            before[rare] = False
        return 1 + int(before.sum())

    def as_history(self, ids: Ids) -> Ids:
        """`ids` of a history as the model reads them: unknown ones, -1, as rare items or not."""
        rare = self.model.item_keys.rare_id
        if not len(ids) or ids.min() >= 0:
            return ids
        return ids[ids >= 0] if rare is None else np.where(ids < 0, rare, ids)

    def predict(self, items: Tensor, lengths: Tensor, age: Tensor) -> Prediction:
        return self.model.predict(items, lengths, age)

    @torch.no_grad()
    def rank(self, queries: Sequence[Query], k: int, *, explain: bool = False) -> list[Ranked]:
        """The lists of `queries`, none of whose histories is empty: k items, or those allowed."""
        items, lengths, age = self._histories(queries)
        exclude = self._excluded(queries)
        prediction = self.predict(items, lengths, age)
        if queries[0].allow is None:
            score, ids = self._best(prediction, k, exclude)
        else:
            score, ids = self._allowed(prediction, queries, k, exclude)
        if bool(score.isnan().any()):
            raise DataError("the scores of the model are NaN: it has diverged.")
        parts = prediction.contributions(ids, exclude).numpy() if explain else None
        found = score.exp() if self.model.score == "probability" else score
        all_ids, scores = ids.cpu().numpy(), found.cpu().numpy()
        ranked = []
        for row, size in enumerate((all_ids >= 0).sum(axis=1).tolist()):
            ranked.append(
                Ranked(
                    all_ids[row, :size],
                    scores[row, :size],
                    None if parts is None else parts[row, :size],
                    prediction.part_names,
                )
            )
        return ranked

    def _best(
        self, prediction: Prediction, k: int, exclude: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if self.model.score == "probability":
            return prediction.topk_log_prob(k, exclude)
        return prediction.topk(k, exclude)

    def _allowed(
        self, prediction: Prediction, queries: Sequence[Query], k: int, exclude: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids (B, k) of the best of the items that each query allows."""
        allowed = [
            np.setdiff1d(each.allow if each.allow is not None else NONE, each.exclude)
            for each in queries
        ]
        ids = _padded(allowed, -1)
        _, score = prediction.topk_and_log_prob(1, ids.clamp(min=0), exclude)
        score = score.cpu().masked_fill(ids < 0, -torch.inf)
        score, place = score.sort(dim=1, descending=True, stable=True)
        return score[:, :k], ids.gather(1, place)[:, :k]

    def _histories(self, queries: Sequence[Query]) -> tuple[Tensor, Tensor, Tensor]:
        """Items (B, T), lengths (B,) and how many baskets ago each event was, (B, T)."""
        reads = self.model.history_length
        lengths = np.array([min(len(each.items), reads) for each in queries])
        width = reads if self.model.fixed_width else int(lengths.max())
        items = np.zeros((len(queries), width), dtype=np.int64)
        times = np.tile(np.arange(width), (len(queries), 1))
        for row, (each, length) in enumerate(zip(queries, lengths.tolist(), strict=True)):
            items[row, :length] = each.items[-length:]
            if each.times is not None:
                times[row, :length] = each.times[-length:]
        age = baskets_ago(times, lengths)
        return torch.from_numpy(items), torch.from_numpy(lengths), torch.from_numpy(age)

    def _excluded(self, queries: Sequence[Query]) -> Tensor | None:
        """(B, E) the classes that are never listed, -1 is padding."""
        rare = self.model.item_keys.rare_id
        rows = [
            each.exclude if rare is None else np.union1d(each.exclude, [rare]) for each in queries
        ]
        return _padded(rows, -1) if any(map(len, rows)) else None


def _padded(rows: Sequence[Ids], padding: int) -> Tensor:
    found = np.full((len(rows), max(1, *map(len, rows))), padding, dtype=np.int64)
    for row, ids in zip(found, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(found)
