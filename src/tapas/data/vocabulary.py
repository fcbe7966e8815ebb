"""Raw keys and their ids 0 .. n-1, with how often each was seen."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tapas.errors import DataError, UsageError

RARE_KEY = "(rare)"
SHORTLIST = 5000  # keys among which a close match is looked for


class Vocabulary:
    """Keys are integers or strings; one of them may be null: the class of all rare items.

    `kind` is what a key is called in messages: "item", "user".
    """

    def __init__(self, keys: pl.Series, counts: NDArray[np.int64], *, kind: str = "item"):
        if keys.len() != len(counts):
            raise UsageError(f"{keys.len()} keys, but {len(counts)} counts. Give one for each.")
        self._keys = keys
        self.counts = counts  # (n,) int64
        self.kind = kind

    def __len__(self) -> int:
        return self._keys.len()

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} {self.kind}s)"

    def keys(self, ids: Sequence[int] | NDArray[Any]) -> list[str | int]:
        """The raw keys of `ids`, in order."""
        wanted = np.asarray(ids, dtype=np.int64).reshape(-1)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < len(self)):
            bad = wanted[(wanted < 0) | (wanted >= len(self))][0]
            raise UsageError(f"{self.kind} id {bad} is outside 0 .. {len(self) - 1}.")
        found = self._keys.gather(pl.Series(wanted)).to_list()
        return [RARE_KEY if key is None else key for key in found]

    def key(self, id: int) -> str | int:
        return self.keys([id])[0]

    def id(self, key: str | int) -> int:
        return int(self.ids([key])[0])

    def ids(self, keys: Iterable[str | int]) -> NDArray[np.int64]:
        """The ids of `keys`, (len(keys),). "123" will do for 123; an unknown key is an error."""
        wanted = list(keys)
        text = pl.Series(wanted, dtype=pl.String, strict=False)
        found = self.find(text.cast(self._keys.dtype, strict=False))
        for position in np.flatnonzero(found < 0):
            found[position] = self._rare_or_unknown(wanted[position])
        return found

    def find(self, keys: pl.Series) -> NDArray[np.int64]:
        """The ids of `keys`, which have the type of ours, -1 for unknown ones and for null."""
        order, sorted_keys = self._index
        found = np.full(keys.len(), -1, dtype=np.int64)
        if sorted_keys.len() and keys.len():
            place = sorted_keys.search_sorted(keys.fill_null(sorted_keys[0]), side="left")
            place = place.clip(0, sorted_keys.len() - 1)
            same = (sorted_keys.gather(place) == keys).fill_null(False).to_numpy()
            found[same] = order[place.to_numpy()[same]]
        return found

    def as_own_type(self, keys: pl.Series) -> pl.Series:
        """`keys` as whole numbers or text, whichever ours are; an error if they cannot be."""
        own = self._keys.dtype
        if keys.dtype == own:
            return keys
        whole = keys if own == pl.String or keys.dtype != pl.String else keys.clear(keys.len())
        cast = whole.cast(own, strict=False)
        lost = (cast.is_null() & keys.is_not_null()).arg_true()
        if lost.len():
            raise DataError(
                f"{self.kind} {keys[lost[0]]!r} is of type {keys.dtype}, but the {len(self):,} "
                f"{self.kind}s that are known are of type {own}. Write them alike."
            )
        return cast

    def extended(
        self, keys: pl.Series, counts: NDArray[np.int64]
    ) -> tuple["Vocabulary", NDArray[np.int64]]:
        """Ours, with the ids that we have, then those of `keys` that are new and were seen.

        New ones are ordered by falling count, ties as in `keys`. Returns the ids of `keys`, too,
        -1 where one is new and was not seen. Counts are those given; of other keys, 0.
        """
        ids = self.find(keys)
        if self.rare_id is not None:
            ids[keys.is_null().to_numpy()] = self.rare_id
        new = np.flatnonzero((ids < 0) & (counts > 0))
        new = new[np.argsort(-counts[new], kind="stable")]
        ids[new] = len(self) + np.arange(len(new))
        all_counts = np.zeros(len(self) + len(new), dtype=np.int64)
        all_counts[ids[counts > 0]] = counts[counts > 0]
        all_keys = pl.concat([self._keys, keys.gather(pl.Series(new))])
        return Vocabulary(all_keys, all_counts, kind=self.kind), ids

    @property
    def rare_id(self) -> int | None:
        """The class of all rare items together, which is no item to recommend; None if none is."""
        if not self._keys.null_count():
            return None
        return int(self._keys.is_null().arg_true()[0])

    def save(self, path: Path) -> None:
        """A Parquet file with columns key and count."""
        pl.DataFrame({"key": self._keys, "count": self.counts}).write_parquet(path)

    @classmethod
    def load(cls, path: Path, *, kind: str = "item") -> Self:
        try:
            frame = pl.read_parquet(path)
            return cls(frame["key"], frame["count"].cast(pl.Int64).to_numpy(), kind=kind)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f"{path} cannot be read: {reason}. Expected a Parquet file with columns key and "
                "count; make it again."
            ) from None

    @cached_property
    def _index(self) -> tuple[NDArray[np.int64], pl.Series]:
        """Ids in rising order of their keys, and these keys; the null key is not among them."""
        order = self._keys.arg_sort(nulls_last=True)
        order = order.head(len(self) - self._keys.null_count())
        return order.to_numpy().astype(np.int64), self._keys.gather(order)

    def _rare_or_unknown(self, key: str | int) -> int:
        if key == RARE_KEY and self.rare_id is not None:
            return self.rare_id
        close = get_close_matches(str(key), self._near(str(key)), n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise UsageError(
            f"unknown {self.kind} '{key}'.{hint} The model knows {len(self):,} {self.kind}s."
        )

    def _near(self, key: str) -> list[str]:
        """Keys of about the same length that begin or end alike: difflib is too slow for all."""
        text = self._keys.cast(pl.String)
        column, part = pl.col("key"), max(1, len(key) // 3)
        similar = column.str.starts_with(key[:part]) | column.str.ends_with(key[-part:])
        length = column.str.len_chars().cast(pl.Int64)
        frame = pl.DataFrame({"key": text}).filter(similar & ((length - len(key)).abs() <= 2))
        return frame["key"].drop_nulls().head(SHORTLIST).to_list()
