"""`Recommender`: a trained model that recommends items, finds similar ones, encodes histories.

One class for the Python function `tapas.load` and for the commands `recommend` and `similar`:
these stream `lists` and `neighbours`, the methods below collect them.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.errors import DataError, UsageError, choice
from tapas.retrieval.lists import Lists
from tapas.shapes import all_finite, check_positive
from tapas.tables.exhaustive import merge_topk, topk_rows

if TYPE_CHECKING:
    from tapas.data.event_log import EventLog
    from tapas.data.histories import Histories
    from tapas.data.python_histories import Given
    from tapas.data.source import LogSource
    from tapas.data.vocabulary import Vocabulary
    from tapas.mixture import Mixture
    from tapas.tables import ClassTable

# histories encoded and ranked together: of fewer, torch keeps the steps of a GRU on one thread
BATCH_SIZE = 1024
SORTED_TOGETHER = 16  # batches sorted by length, so that little padding is encoded
LIST_LENGTH = 20  # by default
ROWS_AT_ONCE = 1 << 16  # whose scaled copies are in memory at a time
COLD = ("error", "skip", "popular")
CURE = 'cold="skip" leaves such users out, cold="popular" gives them the most popular items.'


class Part(NamedTuple):
    """Some of many lists: those of rows start to stop."""

    start: int
    stop: int
    ids: NDArray[np.int64]  # (stop - start, k), -1 after the end of a short list
    scores: NDArray[np.float32]  # (stop - start, k), 0 after the end


class Prediction(Protocol):
    """The distribution over all classes after each of B histories."""

    @property
    def part_names(self) -> tuple[str, ...]:
        """The parts of the model: "softmax", and the counting parts that it has."""

    def topk(self, k: int, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores and ids (B, k) of the k best classes without those in `exclude` (B, E)."""

    def topk_log_prob(self, k: int, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`topk` with exact log-probabilities instead of scores."""

    def topk_and_log_prob(
        self, k: int, ids: Tensor, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The ids (B, k) of `topk`, and log-probabilities (B, L) of `ids` (B, L)."""

    def contributions(self, ids: Tensor, exclude: Tensor | None = None) -> Tensor:
        """What each part adds to the probabilities of `ids` (B, L): (B, L, parts)."""


class Recommender(ABC):
    """A trained model, opened by `tapas.load`.

        model.recommend(users, k=20)        the next items of users of the log
        model.recommend([[a, b], [c]])      or of histories: lists of item keys, oldest first
        model.similar(items, k=20)          items with similar vectors
        model.encode(histories)             queries (B, D): the encoder's output
        model.items, model.users            all keys

    Keys are those of the log, integers or strings. All items are ranked, exactly.
    """

    def __init__(
        self,
        *,
        name: str,
        item_keys: "Vocabulary",
        log: "EventLog | None",
        history_length: int,
        score: str,
        exclude_seen: bool = False,
        fixed_width: bool = False,
        source: "LogSource | None" = None,
    ):
        self.name = name
        self.item_keys = item_keys
        self.log = log  # None: the model has items but no users
        self.source = source  # how the log was read, if known
        self.history_length = check_positive("history_length", history_length)
        self.score = score  # "probability", or "score" if the method has none
        self.exclude_seen = exclude_seen  # unless told otherwise
        self.fixed_width = fixed_width  # histories are always padded to history_length

    @abstractmethod
    def predict(self, items: Tensor, lengths: Tensor, age: Tensor | None = None) -> Prediction:
        """What follows each of B histories.

        `items` (B, T) are ids, oldest first and padded with 0 at the end, `lengths` (B,) the
        number of real ones, `age` (B, T) how many baskets ago they were, if that is known.
        """

    def ranked(
        self,
        items: Tensor,
        lengths: Tensor,
        k: int,
        exclude: Tensor | None,
        age: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities, or scores, and ids of the k best classes, (B, k) each.

        Histories are those of `predict`. Classes in `exclude` (B, E) are left out; -1 is padding.
        """
        prediction = self.predict(items, lengths, age)
        if self.score == "probability":
            return prediction.topk_log_prob(k, exclude)
        return prediction.topk(k, exclude)

    @abstractmethod
    def queries(self, items: Tensor, lengths: Tensor) -> Tensor:
        """The encoder's output after the last item of each history, (B, D)."""

    @abstractmethod
    def class_vectors(self) -> Tensor:
        """The output vectors of all classes, (C, D); UsageError if the method has none."""

    @abstractmethod
    def training_counts(self) -> NDArray[np.int64]:
        """How often each class was seen in training, (C,)."""

    @property
    @abstractmethod
    def output_table(self) -> "ClassTable":
        """The table of class vectors; UsageError if the method has none."""

    @property
    def mixture(self) -> "Mixture | None":
        """The counting parts, if the model has any."""
        return None

    @property
    def date_order(self) -> str | None:
        """The order of day and month in the log of the model, if its dates have one."""
        order = self.log.report.get("date_order") if self.log is not None else None
        return None if order is None else str(order)

    @property
    def items(self) -> list[Any]:
        """The keys of all items; the first are the most frequent."""
        keys = self.item_keys.keys(np.arange(len(self.item_keys)))
        return [key for id, key in enumerate(keys) if id != self.item_keys.rare_id]

    @property
    def users(self) -> list[Any]:
        """The keys of all users of the log, sorted; empty for an export."""
        return [] if self.log is None else self.log.user_keys.keys(np.arange(self.log.num_users))

    @property
    def num_items(self) -> int:
        """How many items can be recommended."""
        return len(self.item_keys) - (self.item_keys.rare_id is not None)

    def __repr__(self) -> str:
        users = "no users" if self.log is None else f"{self.log.num_users:,} users"
        return f"Recommender({self.name}: {self.num_items:,} items, {users}, {self.score})"

    def recommend(
        self,
        users_or_histories: Any,
        k: int | None = None,
        exclude_seen: bool | None = None,
        *,
        cold: str = "error",
    ) -> Any:
        """The k most likely next items of B users or histories; by default 20, or all if fewer.

        Args:
            users_or_histories: users of the log: a key, or a list, array or Series of keys. Or
                histories: a list of lists of item keys, oldest first, a 2-d array, or a DataFrame
                with columns user, item and perhaps time (guessed from their names; a named index
                of pandas is a column, too). Items that the model does not know are left out, with
                a warning, and users without a key.
            exclude_seen: leave out the items of the history. Default: as the run was trained.
            cold: what to do about unknown users and empty histories: "error", "skip" to leave
                them out, or "popular" to list the most popular items of training, with their
                share of the events.

        Returns: `Lists` with `keys` (B,), `items` (B, k), `scores` (B, k) and `to_frame()`. For a
        Series or DataFrame a DataFrame of the same library: user, rank, item, probability.

        >>> model = tapas.load("run")  # doctest: +SKIP
        >>> model.recommend(["u1", "u2"], k=3).items  # doctest: +SKIP
        array([[1007, 1008, 1009],
               [1021, 1022, 1014]])
        """
        from tapas.data.python_histories import parse_given

        choice("value of cold", cold, dict.fromkeys(COLD))
        given = parse_given(users_or_histories, self.item_keys, self.source, self.date_order)
        histories = self.settle_cold(self._histories(given), cold)
        exclude, k = self.exclude_seen if exclude_seen is None else exclude_seen, self.check_k(k)
        parts = list(self.lists(histories, k, exclude_seen=exclude))
        kind = "user" if given.users is not None or given.library else "history"
        lists = self._collected(histories.keys.to_numpy(), parts, k, self.score, kind)
        return lists.to_frame(given.library) if given.library else lists

    def similar(self, items: Any, k: int | None = None) -> Any:
        """The k items whose output vectors have the highest cosine with those of `items`.

        `items` is a key, or a list, array, Series or DataFrame of keys. An item is not in its own
        list. Without a k there are 20, or all. Returns `Lists`, or a DataFrame for a Series or
        DataFrame: item, rank, similar, cosine.
        """
        from tapas.data.python_histories import parse_keys

        keys, library = parse_keys(items)
        as_known = self.item_keys.as_keys(keys)
        if as_known.null_count() == keys.null_count():  # such as 1003.0 for 1003
            keys = as_known
        ids = self.item_keys.ids(keys.to_list())
        k = self.check_k(k, others=True)
        parts = list(self.neighbours(ids, k))
        lists = self._collected(self.item_keys.gather(ids).to_numpy(), parts, k, "cosine", "item")
        return lists.to_frame(library) if library else lists

    def encode(self, users_or_histories: Any) -> NDArray[np.float32]:
        """Queries (B, D) of B users or histories, given as for `recommend`: what the encoder says.

        The logit of an item is query . vector + bias; `tapas export` writes vectors and biases.
        """
        from tapas.data.python_histories import parse_given

        given = parse_given(users_or_histories, self.item_keys, self.source, self.date_order)
        histories = self.settle_cold(self._histories(given), "error", "Leave them out.")
        rows: NDArray[np.float32] | None = None
        for rows_of, items, lengths, _ in self._batches(histories, 0, len(histories)):
            query = self.queries(items, lengths).cpu().numpy()
            rows = np.empty((len(histories), query.shape[1]), np.float32) if rows is None else rows
            rows[rows_of] = query
        if rows is None:  # any history tells D
            width = self.history_length if self.fixed_width else 1
            items = torch.zeros(1, width, dtype=torch.int64)
            rows = self.queries(items, torch.ones(1, dtype=torch.int64)).cpu().numpy()[:0]
        return rows

    def check_k(self, k: int | None, name: str = "k", *, others: bool = False) -> int:
        """`k`, or UsageError unless so many items (`others`: beside the item itself) are there.

        Without a `k`, 20 or all items.
        """
        most = self.num_items - others
        if k is None and most > 0:
            return min(LIST_LENGTH, most)
        k = LIST_LENGTH if k is None else k
        if check_positive(name, k) > most:
            raise UsageError(f"{name} is {k}, but the model can list only {most:,} items.")
        return k

    def _histories(self, given: "Given") -> "Histories":
        from tapas.data.histories import histories_of_users

        if given.histories is not None:
            if (number := given.histories.unknown_items) > 0:
                first = given.histories.first_unknown_item
                done = "left out" if self.item_keys.rare_id is None else "read as rare ones"
                warnings.warn(
                    f"unknown items of histories are {done}: {number:,} (first: {first!r}).",
                    stacklevel=3,
                )
            return given.histories
        if self.log is None:
            raise UsageError(
                "an export has items but no users. Pass histories, a list of lists of items, or "
                "load the folder of the run."
            )
        return histories_of_users(self.log, given.users, once=False)

    def settle_cold(self, histories: "Histories", cold: str, cure: str = CURE) -> "Histories":
        """`histories` without the empty ones if `cold` is "skip"; UsageError if it is "error".

        `cure` ends the error message.
        """
        empty, users = histories.empty, histories.users
        if cold == "skip" and empty.any():
            return histories.keep(~empty)
        if cold != "error":
            return histories
        if users is not None and users.num_unknown and self.log is not None:
            key = users.keys[int(np.flatnonzero(users.ids < 0)[0])]
            hint = self.log.user_keys.suggestion(key)
            if key in self.item_keys:
                hint = " It is an item: for a history, pass a list of lists of items."
            number = f"{self.log.num_users:,}"
            raise UsageError(f"unknown user '{key}'.{hint} The model knows {number} users. {cure}")
        if users is not None and users.no_key:
            raise UsageError(
                f"rows without a user: {users.no_key:,} (first: {users.first_bad}). {cure}"
            )
        if empty.any():
            key = histories.keys[int(np.flatnonzero(empty)[0])]
            raise UsageError(
                f"the history of '{key}' has no item that the model knows, so there is nothing "
                f"to predict from. {cure}"
            )
        return histories

    def lists(self, histories: "Histories", k: int, *, exclude_seen: bool) -> Iterator[Part]:
        """The lists of `histories`, in their order; an empty one gets the most popular items."""
        empty = histories.empty
        chunk = BATCH_SIZE * SORTED_TOGETHER
        for start in range(0, len(histories), chunk):
            stop = min(start + chunk, len(histories))
            ids = np.empty((stop - start, k), np.int64)
            scores = np.empty((stop - start, k), np.float32)
            if empty[start:stop].any():
                ids[empty[start:stop]], scores[empty[start:stop]] = self.popular(k)
            for rows, items, lengths, age in self._batches(histories, start, stop):
                exclude = self._excluded(histories, rows, exclude_seen)
                with torch.no_grad():
                    score, found = self.ranked(items, lengths, k, exclude, age)
                ids[rows - start] = found.cpu().numpy()
                scores[rows - start] = self._readable(score).cpu().numpy()
            yield Part(start, stop, ids, scores)

    def _readable(self, score: Tensor) -> Tensor:
        """Probabilities if the model has them, 0 after the end of a short list."""
        if bool(score.isnan().any()):
            raise DataError(
                "the scores of the model are NaN: it has diverged. Take an earlier checkpoint "
                "(--step), or train again with lower learning rates."
            )
        if self.score == "probability":
            return score.exp()
        return score.masked_fill(score == -torch.inf, 0.0)

    def popular(self, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The k items with the most training events, (k,), and their share of all events."""
        best = self._by_popularity[:k]
        return best, (self._counts[best] / max(1, self._counts.sum())).astype(np.float32)

    @cached_property
    def _by_popularity(self) -> NDArray[np.int64]:
        best: NDArray[np.int64] = np.argsort(-self._counts, kind="stable")
        rare = self.item_keys.rare_id
        return best if rare is None else np.setdiff1d(best, [rare], assume_unique=True)

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        return self.training_counts()

    def _batches(
        self, histories: "Histories", start: int, stop: int
    ) -> Iterator[tuple[NDArray[np.int64], Tensor, Tensor, Tensor | None]]:
        """Batches of the histories that are not empty: rows, and what `ranked` takes of them."""
        from tapas.data.baskets import baskets_ago
        from tapas.data.windows import gather_histories

        length = np.minimum(histories.end - histories.start, self.history_length)[start:stop]
        order = start + np.argsort(length, kind="stable")
        order = order[np.count_nonzero(length <= 0) :]
        for first in range(0, len(order), BATCH_SIZE):
            rows = order[first : first + BATCH_SIZE]
            longest = int(length[rows[-1] - start])
            width = self.history_length if self.fixed_width else longest
            items, lengths, event = gather_histories(
                histories.items, histories.start[rows], histories.end[rows], width
            )
            age = None
            if histories.times is not None:
                age = torch.from_numpy(baskets_ago(histories.times[event], lengths))
            yield rows, torch.from_numpy(items), torch.from_numpy(lengths), age

    def _excluded(
        self, histories: "Histories", rows: NDArray[np.int64], exclude_seen: bool
    ) -> Tensor | None:
        """(B, E) ids to leave out of the lists of `rows`: the seen ones and the rare class."""
        rare = self.item_keys.rare_id
        if not exclude_seen:
            return None if rare is None else torch.full((len(rows), 1), rare)
        start, end = histories.start[rows], histories.end[rows]
        owner = np.repeat(np.arange(len(rows)), end - start)
        begins = np.cumsum(end - start) - (end - start)
        event = np.arange(len(owner)) + np.repeat(start - begins, end - start)
        pair = np.unique(owner * len(self.item_keys) + histories.items[event].astype(np.int64))
        owner, item = pair // len(self.item_keys), pair % len(self.item_keys)
        count = np.bincount(owner, minlength=len(rows))
        slot = np.arange(len(pair)) - np.repeat(np.cumsum(count) - count, count)
        width = int(count.max()) + (rare is not None)
        exclude = np.full((len(rows), width), -1, dtype=np.int64)
        exclude[owner, slot] = item
        if rare is not None:
            exclude[:, -1] = rare
        return torch.from_numpy(exclude)

    @cached_property
    def _inverse_lengths(self) -> Tensor:
        """1 / the length of each class vector, (C,)."""
        vectors = self.class_vectors().detach()
        if not all_finite(vectors):
            raise DataError(
                "the class vectors contain NaN or inf: the model has diverged. Take an earlier "
                "checkpoint (--step)."
            )
        blocks = torch.split(vectors, ROWS_AT_ONCE)
        lengths = torch.cat([block.float().norm(dim=1) for block in blocks])
        return 1 / lengths.clamp(min=1e-12)

    def neighbours(self, ids: NDArray[np.int64], k: int) -> Iterator[Part]:
        """The k classes with the most similar vectors for each of `ids` (B,), by cosine."""
        rare = self.item_keys.rare_id
        inverse, rows = self._inverse_lengths, self.class_vectors().detach()
        for start in range(0, len(ids), BATCH_SIZE):
            mine = torch.from_numpy(ids[start : start + BATCH_SIZE])
            exclude = mine[:, None]
            if rare is not None:
                exclude = torch.cat([exclude, torch.full_like(exclude, rare)], dim=1)
            here = mine.to(rows.device)
            query = rows[here].float() * inverse[here, None]
            scores, found = [], []
            for first in range(0, len(rows), ROWS_AT_ONCE):  # a scaled copy of some rows at a time
                block = rows[first : first + ROWS_AT_ONCE].float()
                block = block * inverse[first : first + ROWS_AT_ONCE, None]
                inside = (exclude >= first) & (exclude < first + len(block))
                left_out = (exclude - first).masked_fill(~inside, -1).to(rows.device)
                score, best = topk_rows(block, None, query, min(k, len(block)), left_out)
                scores.append(score)
                found.append(torch.where(best >= 0, best + first, best))
            score, best = merge_topk(torch.cat(scores, dim=1), torch.cat(found, dim=1), k)
            yield Part(start, start + len(mine), best.cpu().numpy(), score.cpu().numpy())

    def _collected(
        self, keys: NDArray[Any], parts: list[Part], k: int, score: str, kind: str
    ) -> Lists:
        ids = np.concatenate([part.ids for part in parts] or [np.empty((0, k), np.int64)])
        scores = np.concatenate([part.scores for part in parts] or [np.empty((0, k), np.float32)])
        items = self.item_keys.gather(np.maximum(ids, 0).reshape(-1)).to_numpy().reshape(ids.shape)
        if (ids < 0).any():
            items = items.astype(object)
            items[ids < 0] = None
        return Lists(keys, items, scores, score, kind)
