"""The vocabulary of users or items: raw keys, their ids 0 .. n-1, and their counts."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tapas.data.local_files import literal
from tapas.errors import DataError, UsageError
from tapas.phrases import did_you_mean
from tapas.regular_file import check_stored

RARE_KEY = "(rare)"
MAX_SUGGESTIONS = 5000  # keys that are searched for a close match
MOST_PER_BYTE = 100  # keys in a byte of a file, which differ; equal ones could be any number


def num_keys(path: Path) -> int:
    """How many keys the file of a vocabulary has; DataError if it cannot be read."""
    try:
        size = check_stored(path).stat().st_size
        rows = pl.scan_parquet(literal(path), glob=False).select(pl.len()).collect().item()
    except FileNotFoundError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _unreadable(path, error) from None
    if rows > MOST_PER_BYTE * size:
        raise DataError(f"{path} claims {rows:,} keys in {size:,} bytes: it is damaged.")
    return int(rows)


def _unreadable(path: Path, error: BaseException) -> DataError:
    reason = str(error).splitlines()[0]
    return DataError(
        f"{path} cannot be read: {reason}. Expected a Parquet file with columns key and count; "
        "prepare the log again."
    )


class Vocabulary:
    """Maps keys to ids and back. Keys are integers or strings.

    One key may be null, the class of all rare items, shown as "(rare)". `kind` is "item" or "user"
    and appears in error messages.
    """

    def __init__(self, keys: pl.Series, counts: NDArray[np.int64], *, kind: str = "item"):
        if keys.len() != len(counts):
            raise UsageError(
                f"there are {keys.len()} keys but {len(counts)} counts; expected one count per key."
            )
        self._keys = keys
        self.counts = counts  # (n,) int64
        self.kind = kind

    def __len__(self) -> int:
        return self._keys.len()

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} {self.kind}s)"

    def __contains__(self, key: str | int) -> bool:
        return bool(self.lookup(pl.Series([str(key)]))[0] >= 0)

    def keys(self, ids: Sequence[int] | NDArray[Any]) -> list[str | int]:
        """The raw keys of `ids`, in the same order. Raises `UsageError` for an id out of range."""
        wanted = np.asarray(ids, dtype=np.int64).reshape(-1)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < len(self)):
            bad = wanted[(wanted < 0) | (wanted >= len(self))][0]
            raise UsageError(f"{self.kind} id {bad} is outside 0 .. {len(self) - 1}.")
        found = self.gather(wanted).to_list()
        return [RARE_KEY if key is None else key for key in found]

    def gather(self, ids: NDArray[np.int64]) -> pl.Series:
        """The raw keys of `ids` as a column; null for the class of rare items."""
        return self._keys.gather(pl.Series(ids))

    def key(self, id: int) -> str | int:
        return self.keys([id])[0]

    def id(self, key: str | int) -> int:
        return int(self.ids([key])[0])

    def ids(self, keys: Iterable[str | int]) -> NDArray[np.int64]:
        """The ids of `keys`, (len(keys),); "123" also finds 123.

        Raises `UsageError` for an unknown key, with a suggestion.
        """
        wanted = list(keys)
        found = self.known_ids(wanted)
        for position in np.flatnonzero(found < 0):
            found[position] = self._rare_or_unknown(wanted[position])
        return found

    def known_ids(self, keys: Sequence[str | int]) -> NDArray[np.int64]:
        """As `ids`, but -1 for unknown keys."""
        if self._keys.dtype.is_integer() and all(type(key) is int for key in keys):
            with suppress(OverflowError):  # a number that no key of this type can be
                return self._find_numbers(np.array(keys, dtype=self._numbers.dtype))
        text = pl.Series(keys, dtype=pl.String, strict=False)
        return self.find(text.cast(self._keys.dtype, strict=False))

    def lookup(self, keys: pl.Series) -> NDArray[np.int64]:
        """The ids of `keys` of any type, -1 for unknown keys and null; "123" also finds 123."""
        return self.find(self.as_keys(keys))

    def as_keys(self, keys: pl.Series) -> pl.Series:
        """`keys` of any type as this vocabulary has them; null where that is impossible."""
        if keys.dtype.is_float():  # of a column of integers in which some are missing
            whole = keys.fill_nan(None).cast(pl.Int64, strict=False)
            keys = whole.set((whole != keys).fill_null(True), None)
        if keys.dtype == self._keys.dtype:
            return keys
        return keys.cast(pl.String, strict=False).cast(self._keys.dtype, strict=False)

    def find(self, keys: pl.Series) -> NDArray[np.int64]:
        """The ids of `keys`, -1 for unknown keys and null. The type must be that of `cast_keys`."""
        found = np.full(keys.len(), -1, dtype=np.int64)
        if keys.null_count():
            found[keys.is_not_null().to_numpy()] = self.find(keys.drop_nulls())
            return found
        if self._keys.dtype.is_integer():
            return self._find_numbers(keys.to_numpy())
        order, sorted_keys = self._index
        if sorted_keys.len() and keys.len():
            place = sorted_keys.search_sorted(keys, side="left").to_numpy()
            place = np.minimum(place, sorted_keys.len() - 1)
            same = (sorted_keys.gather(place) == keys).to_numpy()
            found[same] = order[place[same]]
        return found

    def _find_numbers(self, keys: NDArray[np.integer]) -> NDArray[np.int64]:
        """As `find`, for keys that are integers: without the fixed cost of calls to polars."""
        order, _ = self._index
        if not len(order):
            return np.full(len(keys), -1, dtype=np.int64)
        place = np.searchsorted(self._numbers, keys).clip(max=len(order) - 1)
        return np.where(self._numbers[place] == keys, order[place], -1)

    def starting_with(self, text: str, limit: int) -> NDArray[np.int64]:
        """The first `limit` ids whose keys begin with `text`, that of `text` itself before all."""
        found = self._keys.cast(pl.String).str.starts_with(text).fill_null(False).arg_true()
        first = self.known_ids([text])
        ids = found.head(limit).to_numpy().astype(np.int64)
        return np.concatenate([first[first >= 0], ids[ids != first[0]]])[:limit]

    def cast_keys(self, keys: pl.Series) -> pl.Series:
        """`keys` cast to the type of this vocabulary's keys; raises `DataError` if impossible."""
        dtype = self._keys.dtype
        if keys.dtype == dtype:
            return keys
        castable = dtype == pl.String or keys.dtype != pl.String
        cast = (keys if castable else keys.clear(keys.len())).cast(dtype, strict=False)
        lost = (cast.is_null() & keys.is_not_null()).arg_true()
        if lost.len():
            raise DataError(
                f"{self.kind} {keys[lost[0]]!r} is of type {keys.dtype}, but the {len(self):,} "
                f"known {self.kind}s are of type {dtype}. Write them the same way in all files."
            )
        return cast

    def extended(
        self, keys: pl.Series, counts: NDArray[np.int64]
    ) -> tuple["Vocabulary", NDArray[np.int64]]:
        """This vocabulary extended by the new ones of `keys` with positive `counts`, and all ids.

        Known keys keep their ids; new ones follow by decreasing count, ties in the order of
        `keys`. The second result has the ids of `keys`, -1 for a new key with count 0. Counts of
        the result are `counts`, and 0 for keys that are not in `keys`.
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

    def same_keys(self, other: "Vocabulary") -> bool:
        """Whether the other has the same keys with the same ids."""
        return self._keys.equals(other._keys, check_dtypes=True, null_equal=True)

    @cached_property
    def rare_id(self) -> int | None:
        """The id of the class of all rare items, which is never recommended; None without one."""
        if not self._keys.null_count():
            return None
        return int(self._keys.is_null().arg_true()[0])

    def save(self, path: Path) -> None:
        """Write a Parquet file with columns key and count."""
        pl.DataFrame({"key": self._keys, "count": self.counts}).write_parquet(literal(path))

    @classmethod
    def load(cls, path: Path, *, kind: str = "item") -> Self:
        try:
            num_keys(path)
            frame = pl.read_parquet(literal(path), glob=False, columns=["key", "count"])
            if not (frame["key"].dtype.is_integer() or frame["key"].dtype == pl.String):
                raise pl.exceptions.SchemaError(f"key is of type {frame['key'].dtype}")
            return cls(frame["key"], frame["count"].cast(pl.Int64).to_numpy(), kind=kind)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            raise _unreadable(path, error) from None

    @cached_property
    def _index(self) -> tuple[NDArray[np.int64], pl.Series]:
        """Ids sorted by their keys, and the sorted keys, without the null key."""
        order = self._keys.arg_sort(nulls_last=True)
        order = order.head(len(self) - self._keys.null_count())
        return order.to_numpy().astype(np.int64), self._keys.gather(order)

    @cached_property
    def _numbers(self) -> NDArray[np.integer]:
        """The sorted keys, if they are integers."""
        return self._index[1].to_numpy()

    def _rare_or_unknown(self, key: str | int) -> int:
        if key == RARE_KEY and self.rare_id is not None:
            return self.rare_id
        raise UsageError(
            f"unknown {self.kind} '{key}'.{self.suggestion(key)} The model knows {len(self):,} "
            f"{self.kind}s."
        )

    def suggestion(self, key: str | int) -> str:
        """ " Did you mean 'x'?" for an unknown key, or nothing if no key is close."""
        return did_you_mean(str(key), self._near(str(key)))

    def _near(self, key: str) -> list[str]:
        """Keys of similar length with the same start or end, as difflib is too slow for all."""
        text = self._keys.cast(pl.String)
        column, size = pl.col("key"), max(1, len(key) // 3)
        similar = column.str.starts_with(key[:size]) | column.str.ends_with(key[-size:])
        length = column.str.len_chars().cast(pl.Int64)
        frame = pl.DataFrame({"key": text}).filter(similar & ((length - len(key)).abs() <= 2))
        return frame["key"].drop_nulls().head(MAX_SUGGESTIONS).to_list()
