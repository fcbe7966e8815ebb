"""Users or histories as Python objects: lists, numpy arrays, Series or DataFrames.

Series and DataFrames may be of polars or pandas, which need not be installed. A scalar is a user,
a list of scalars are users, a list of lists are histories. A DataFrame with columns of users and
items is a log, or has a list of items for each user; with one column, or without a column of items,
it has users. A named index of pandas, as after `groupby` and `set_index`, is a column like others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tapas.data.column_words import find_column
from tapas.data.columns import Present, guess_column, resolve_columns
from tapas.data.dates import without_format
from tapas.data.histories import (
    SCALAR,
    Histories,
    histories_of_events,
    histories_of_lists,
    key_column,
)
from tapas.data.keys import code_keys, normalize_keys
from tapas.data.source import LogSource
from tapas.data.times import parse_times
from tapas.data.vocabulary import Vocabulary
from tapas.errors import DataError, UsageError, choice

GIVEN = Path("the DataFrame")  # in errors, where a file would be named


@dataclass(frozen=True, slots=True)
class Given:
    """What was passed to a function for users or histories: `users`, or else `histories`."""

    users: pl.Series | None
    histories: Histories | None
    library: str | None = None  # "polars" or "pandas" if a Series or DataFrame was passed


def parse_given(
    given: Any,
    item_keys: Vocabulary,
    known: LogSource | None = None,
    order: str | None = None,
) -> Given:
    """`given` as users or histories; raises `UsageError` for anything else. See this module.

    Columns of a DataFrame that the log of the model, `known`, also has are taken as there, and
    dates that do not show the order of day and month as in its `order`.
    """
    library = type(given).__module__.partition(".")[0]
    if library in ("polars", "pandas"):
        parse = _parse_polars if library == "polars" else _parse_pandas
        return replace(parse(given, item_keys, known, order), library=library)
    if isinstance(given, SCALAR | bytes):
        return Given(key_column([given]), None)
    if hasattr(given, "__array__") and not isinstance(given, np.ndarray):  # a tensor
        given = np.asarray(given)
    if isinstance(given, np.ndarray):
        if given.ndim > 2 or given.dtype.kind not in "OUSiuf":
            raise UsageError(
                f"the array has shape {given.shape} and dtype {given.dtype}; expected users (B,) "
                "or histories (B, T), keys as integers or text."
            )
        return _parse_sequence(given.tolist(), item_keys)
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise UsageError(
            f"got a {type(given).__name__}; expected users (a list of keys), histories (a list of "
            "lists of item keys), a numpy array, or a Series or DataFrame."
        )
    return _parse_sequence(list(given), item_keys)


def parse_keys(given: Any) -> tuple[pl.Series, str | None]:
    """The item keys in `given`, and the library of a Series or DataFrame ("polars", "pandas")."""
    library = type(given).__module__.partition(".")[0]
    if library not in ("polars", "pandas"):
        if isinstance(given, SCALAR | bytes | float) or given is None:
            return key_column([given]), None
        if isinstance(given, Mapping) or not isinstance(given, Iterable):
            raise UsageError(
                f"got a {type(given).__name__}; expected items: a key, or a list, array, Series or "
                "DataFrame of keys."
            )
        keys = given if hasattr(given, "__array__") else list(given)
        return key_column(np.asarray(keys, dtype=object).reshape(-1).tolist()), None
    if hasattr(given, "columns"):
        names = list(given.columns)
        if len(names) > 1:
            column = guess_column("item", list(map(str, names)), GIVEN, "Rename it to 'item'.")
            names = [name for name in names if str(name) == column]
        given = given[names[0]]
    return (given if library == "polars" else key_column(_values(given))), library


def _parse_sequence(rows: list[Any], item_keys: Vocabulary) -> Given:
    are_lists = [_is_list(row) for row in rows]
    if all(are_lists):
        return Given(None, _rows(rows, item_keys))
    if any(are_lists):
        raise UsageError(
            f"element {are_lists.index(True)} is a list, a history, but element "
            f"{are_lists.index(False)} is not. Pass only users, or only histories."
        )
    return Given(key_column(rows), None)


def _is_list(row: Any) -> bool:
    """Whether `row` is a list, a tuple, a range, an array, a tensor or the like."""
    is_sequence = isinstance(row, Sequence | pl.Series) and not isinstance(row, str | bytes)
    return is_sequence or getattr(row, "ndim", 0) > 0


def _rows(rows: Sequence[Any], item_keys: Vocabulary) -> Histories:
    lists = [row.tolist() if hasattr(row, "tolist") else () if row is None else row for row in rows]
    return histories_of_lists(range(len(rows)), lists, item_keys)


def _parse_polars(
    given: Any, item_keys: Vocabulary, known: LogSource | None, order: str | None
) -> Given:
    if hasattr(given, "columns"):
        if len(given.columns) > 1:
            return _parse_frame(given, item_keys, known, order)
        given = given.to_series()
    if given.dtype.is_nested():
        return Given(None, _rows(given.to_list(), item_keys))
    return Given(given, None)


def _parse_pandas(
    given: Any, item_keys: Vocabulary, known: LogSource | None, order: str | None
) -> Given:
    index: Any = getattr(given, "index", None)  # an index itself has none
    columns: Any = getattr(given, "columns", ())
    if len(columns) == 1:
        given = given[columns[0]]
    if len(columns) > 1:
        values = {str(name): _values(given[name]) for name in columns}
    else:
        found = _parse_sequence(_values(given), item_keys)
        if found.histories is not None:
            if type(index).__name__ not in ("RangeIndex", "NoneType"):
                keys = key_column(index.tolist())  # users, as after groupby(user)[item].agg(list)
                found = replace(found, histories=replace(found.histories, keys=keys))
            return found
        values = {str(getattr(given, "name", None)): _values(given)}
    names = [name for name in getattr(index, "names", ()) if name is not None]
    levels = {str(name): _values(index.get_level_values(name)) for name in names}
    if len(values) == 1 and not levels:
        return found
    levels = {name: level for name, level in levels.items() if name not in values}
    return _parse_frame(
        pl.DataFrame({**values, **levels}, strict=False),
        item_keys,
        known,
        order,
        levels=tuple(levels),
        cure="Rename it, or the index, to 'user'.",
    )


def _parse_frame(
    frame: pl.DataFrame,
    item_keys: Vocabulary,
    known: LogSource | None,
    order: str | None,
    *,
    levels: tuple[str, ...] = (),
    cure: str = "Rename it to 'user'.",
) -> Given:
    """A DataFrame of users, or a log: columns as in `known`, or guessed by name.

    The last columns, `levels`, are those of an index. `cure` is for the error without users.
    """
    present = frame.columns
    own = {role: getattr(known, role) for role in ("user", "item", "time")} if known else {}
    own = {role: name for role, name in own.items() if name in present}
    columns = present[: len(present) - len(levels)]
    if "user" not in own:
        if (named := find_column("user", columns) or find_column("user", levels)) is not None:
            own["user"] = named
        elif len(columns) == 1:
            own["user"] = columns[0]
        elif len(levels) == 1:
            own["user"] = levels[0]
        else:
            guess_column("user", present, GIVEN, cure)
    item = own.get("item") or find_column("item", present)
    if item is None or item == own["user"]:
        return Given(frame[own["user"]], None)
    if frame[item].dtype.is_nested():
        keys = normalize_keys(frame[own["user"]], GIVEN)
        lists = replace(_rows(frame[item].to_list(), item_keys), keys=keys)
        return Given(
            None, replace(lists.keep(keys.is_not_null().to_numpy()), bad_rows=keys.null_count())
        )
    roles = resolve_columns(LogSource(files=(str(GIVEN),), **own), Present(GIVEN, frame)).names
    time_format = known.time_format if known and "time" in own else None
    raw = {role: normalize_keys(frame[roles[role]], GIVEN) for role in ("user", "item")}
    time = None
    if "time" in roles:
        with without_format():
            time = parse_times(frame[roles["time"]], GIVEN, time_format, order).values
    keep = raw["user"].is_not_null() & raw["item"].is_not_null()
    if time is not None:
        keep &= time.is_not_null()
    user, item = (code_keys([raw[role].filter(keep)], typed=True) for role in ("user", "item"))
    if not len(user.codes):
        raise DataError("the DataFrame has no row with user, item and time.")
    times = np.arange(len(user.codes)) if time is None else time.filter(keep).to_numpy()
    found = histories_of_events((user.keys, user.codes), (item.keys, item.codes), times, item_keys)
    return Given(None, replace(found, bad_rows=int((~keep).sum())))


def _values(column: Any) -> list[Any]:
    """The values of a pandas Series; NaN, NaT and NA become None."""
    pairs = zip(column.tolist(), column.isna().tolist(), strict=True)
    return [None if missing else value for value, missing in pairs]


def frame_of(columns: dict[str, Any], library: str) -> Any:
    """A DataFrame of `library`, "polars" or "pandas"."""
    choice("library", library, dict.fromkeys(("polars", "pandas")))
    if library == "polars":
        return pl.DataFrame(columns)
    try:
        pandas = import_module("pandas")
    except ModuleNotFoundError:
        raise UsageError("pandas is not installed. Use to_frame() for polars.") from None
    return pandas.DataFrame(
        {name: c.to_list() if isinstance(c, pl.Series) else c for name, c in columns.items()}
    )
