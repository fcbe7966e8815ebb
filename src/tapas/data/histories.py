"""Histories to recommend from: of users of a log, or from files."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tapas.data.column_words import find_column
from tapas.data.columns import guess_column
from tapas.data.dates import without_format
from tapas.data.event_log import EventLog
from tapas.data.event_order import sort_events
from tapas.data.keys import normalize_keys
from tapas.data.log_options import parse_condition
from tapas.data.raw_events import read_events
from tapas.data.readers import column_names, file_kind, open_layout, read_frame
from tapas.data.source import LogSource
from tapas.data.text_lines import text_lines
from tapas.data.vocabulary import RARE_KEY, Vocabulary
from tapas.errors import DataError, UsageError
from tapas.json_toml import parse_json
from tapas.regular_file import check_given

SCALAR = str | int | np.integer
LOG_FILES = (".parquet", ".pq", ".csv", ".tsv", ".jsonl", ".ndjson", ".gz", ".zst")


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """Keys from a file or a list, looked up; rows without one are left out."""

    keys: pl.Series  # (B,)
    ids: NDArray[np.int64]  # (B,) -1 for unknown keys
    no_key: int = 0  # rows without a key
    repeated: int = 0  # rows left out because an earlier one has the same key
    first_bad: str = ""  # the first row with an unknown key or without one

    @property
    def num_unknown(self) -> int:
        return int(np.count_nonzero(self.ids < 0))


def find_keys(known: Vocabulary, keys: pl.Series, *, once: bool = True) -> FoundKeys:
    """Look `keys` of any type up in `known`, each one `once` or as often as it is there."""
    row = pl.Series(np.arange(keys.len()))
    missing = _missing(keys)
    as_known = known.as_keys(keys)
    if as_known.null_count() == int(missing.sum()):  # or unknown keys of another type are there
        keys = as_known
    bad = [(int(missing.arg_true()[0]), "")] if missing.any() else []
    keys, row = keys.filter(~missing), row.filter(~missing)
    num_keys = keys.len()
    if once:
        distinct = keys.is_first_distinct()
        keys, row = keys.filter(distinct), row.filter(distinct)
    ids = known.lookup(keys)
    unknown = np.flatnonzero(ids < 0)
    if len(unknown):
        first = int(unknown[0])
        bad.append((int(row[first]), f"'{keys[first]}', "))
    return FoundKeys(
        keys,
        ids,
        no_key=int(missing.sum()),
        repeated=num_keys - keys.len(),
        first_bad="".join(f"{key}row {place + 1}" for place, key in sorted(bad)[:1]),
    )


def _missing(keys: pl.Series) -> pl.Series:
    """True where a key is null, NaN or blank text."""
    missing = keys.is_null()
    if keys.dtype.is_float():
        missing |= keys.is_nan().fill_null(True)
    if keys.dtype == pl.String:
        missing |= (keys.str.strip_chars() == "").fill_null(True)
    return missing


@dataclass(frozen=True, slots=True)
class Histories:
    """B histories and whose they are: items[start[b]:end[b]] is that of keys[b], oldest first.

    A history may be empty.
    """

    keys: pl.Series  # (B,)
    items: NDArray[np.integer]  # (N,) item ids
    start: NDArray[np.int64]  # (B,)
    end: NDArray[np.int64]  # (B,)
    users: FoundKeys | None = None  # how `keys` were found, if they are users of the log
    bad_rows: int = 0  # rows of a file without user, item or time, which are left out
    first_bad_row: str = ""
    unknown_items: int = 0  # events that are left out, or are of the rare class if there is one
    first_unknown_item: str | int | None = None
    times: NDArray[np.integer] | None = None  # (N,) of the events, if known: equal in a basket

    def __len__(self) -> int:
        return len(self.start)

    @property
    def empty(self) -> NDArray[np.bool_]:
        """(B,) True for histories without an item."""
        return self.start >= self.end

    def keep(self, mask: NDArray[np.bool_]) -> "Histories":
        """The histories where `mask` (B,) is True."""
        return replace(
            self, keys=self.keys.filter(pl.Series(mask)), start=self.start[mask], end=self.end[mask]
        )


def histories_of_users(
    log: EventLog, users: pl.Series | None = None, *, once: bool = True
) -> Histories:
    """The histories of `users`, keys of the log; of all its users if None, in the log's order.

    Those of unknown users are empty. Unless `once`, a user may be there several times.
    """
    offsets = np.asarray(log.offsets)
    if users is None:
        ids = np.arange(log.num_users)
        keys = log.user_keys.gather(ids)
        return Histories(keys, log.items, offsets[:-1], offsets[1:], times=log.times)
    found = find_keys(log.user_keys, users, once=once)
    start = offsets[np.maximum(found.ids, 0)]
    end = np.where(found.ids < 0, start, offsets[np.maximum(found.ids, 0) + 1])
    return Histories(found.keys, log.items, start, end, found, times=log.times)


def read_keys(
    path: Path, known: Vocabulary, column: str | None, source: LogSource | None = None
) -> pl.Series:
    """The users or items in a file: a column of a table, or the lines of any other file.

    `known` has the users or items of the model. `column` defaults to that of the log `source`, the
    one that looks like users or items, or the only one; if this is called like a known key, there
    is no header. Broken rows have no key. Raises `UsageError` if file or column is missing,
    `DataError` if the file cannot be read.
    """
    role = known.kind
    if not os.path.lexists(path) and get_close_matches(str(path).lower(), ["all"]):
        raise UsageError(f"there is no file {path}. Did you mean all?")
    check_given(path)
    if path.suffix.lower() not in LOG_FILES:
        if column is not None:
            raise UsageError(f"{path} is read as one {role} per line, without columns.")
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read: {error}.") from None
        return pl.Series([line.strip() for line in lines if line.strip()], dtype=pl.String)
    layout = open_layout(path, None, False)
    present = column_names(path, layout)
    if column is None and len(present) == 1:
        if layout is not None and present[0] in known:
            layout, present = replace(layout, header=False), ["1"]
        column = present[0]
    elif column is None:
        column = guess_column(role, present, path, like=getattr(source, role, None))
    elif column not in present:
        raise UsageError(f"{path} has no column '{column}'. Columns: {', '.join(present)}.")
    frame = read_frame(path, [column], skip_bad_rows=True, layout=layout)
    return normalize_keys(frame.rows[column], path)


def read_histories(
    path: Path,
    columns: Mapping[str, str],
    item_keys: Vocabulary,
    status: Callable[[str], None],
    known: LogSource | None = None,
    order: str | None = None,
) -> Histories:
    """The histories in the file `path`: a log, or JSON lines with one list each.

    A log that looks like the one the model was trained on, `known`, is read as that was. Of any
    other, columns are guessed. `columns` by role (user, item, time) replace both. `order` is that
    of the model's log, for dates that do not show theirs. Rows without
    user, item or time are left out. A line of JSON is a list of items, or an object with one such
    list, and with the key of its user unless it is to be the line's number.
    """
    check_given(path)
    if file_kind(path) == "json":
        given = _json_lists(path)
        if given is not None:
            return histories_of_lists(*given, item_keys)
    like = _options_of(known, path) if known is not None else {}
    source = LogSource(files=(str(path),), skip_bad_rows=True, **{**like, **columns})
    with without_format():
        raw = read_events(source, status, order)
    found = histories_of_events(
        (raw.user.keys, raw.user.codes), (raw.item.keys, raw.item.codes), raw.time, item_keys
    )
    examples = raw.report["bad_examples"]
    first = str(examples[0]) if isinstance(examples, list) and examples else ""
    return replace(found, bad_rows=int(str(raw.report["bad_rows"])), first_bad_row=first)


def _options_of(known: LogSource, path: Path) -> dict[str, Any]:
    """The options with which `known` was read, if `path` has its columns; {} if not.

    Columns of a file without a header are numbered, and any file has these: one whose first row
    names users and items has a header all the same.
    """
    if known.user is None or known.item is None:  # a text
        return {}
    names = {known.user, known.item, *([] if known.time is None else [known.time])}
    names |= {parse_condition(each).column for each in known.where}
    is_csv = file_kind(path) == "csv"
    if known.no_header:
        header = column_names(path) if is_csv else []
        if not is_csv or all(find_column(role, header) for role in ("user", "item")):
            return {}
    layout = open_layout(path, known.separator, known.no_header) if is_csv else None
    if not names <= set(column_names(path, layout)):
        return {}
    of_csv = ("separator", "no_header") if is_csv else ()
    of_time = () if known.time is None else ("time", "time_format")
    options = ("user", "item", *of_time, "where", *of_csv)
    return {name: getattr(known, name) for name in options}


def histories_of_events(
    user: tuple[pl.Series, NDArray[np.uint32]],
    item: tuple[pl.Series, NDArray[np.uint32]],
    time: NDArray[np.int64],
    item_keys: Vocabulary,
) -> Histories:
    """Histories of events in file order; users and items are (keys, codes)."""
    events, _ = sort_events(user[1], time, item[1])
    ids = item_keys.lookup(item[0])[events.item]
    present = np.flatnonzero(np.bincount(events.user, minlength=user[0].len()))
    known = ids >= 0
    bad = np.flatnonzero(~known)
    if item_keys.rare_id is not None and len(bad):  # once in a basket, as in a log
        basket = np.cumsum(events.first)[bad]
        first = bad[np.append(True, basket[1:] != basket[:-1])]
        ids[first], known[first] = item_keys.rare_id, True
    count = np.bincount(events.user[known], minlength=user[0].len())[present]
    end = np.cumsum(count)
    return Histories(
        user[0].gather(pl.Series(present)), ids[known], end - count, end,
        unknown_items=len(bad),
        first_unknown_item=item[0][int(events.item[bad[0]])] if len(bad) else None,
        times=np.cumsum(events.first, dtype=np.int64)[known],
    )  # fmt: skip


def _json_lists(path: Path) -> tuple[list[Any], list[list[Any]]] | None:
    """Users and lists of JSON lines; None if the first line has no list."""
    users: list[Any] = []
    lists: list[list[Any]] = []
    if path.suffix not in (".jsonl", ".ndjson"):
        return None
    for row, line in enumerate(text_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line.removeprefix("\ufeff"))
        except ValueError:
            record = None
        found = _list_in(record, path)
        if found is None:
            if not lists:
                return None
            raise DataError(
                f"{path}, row {row}: expected a list of items, or an object with one, as in the "
                f"rows before it; got {line.strip()[:60]!r}."
            )
        user, items = found
        users.append(len(users) + 1 if user is None else user)
        lists.append(items)
    return users, lists


def _list_in(record: Any, path: Path) -> tuple[Any, list[Any]] | None:
    """The user, or None, and the list of a line of JSON."""
    if isinstance(record, list):
        return None, record
    if not isinstance(record, dict):
        return None
    lists = [value for value in record.values() if isinstance(value, list)]
    others = {name: value for name, value in record.items() if not isinstance(value, list)}
    if len(lists) != 1:
        return None
    if len(others) <= 1:
        return next(iter(others.values()), None), lists[0]
    return others[guess_column("user", list(others), path)], lists[0]


def histories_of_lists(
    users: Sequence[Any], lists: Sequence[Iterable[Any]], keys: Vocabulary
) -> Histories:
    """Histories from lists of item keys."""
    rows = [list(row) for row in lists]
    flat = key_column([key for row in rows for key in row])
    ids = keys.lookup(flat)
    bad = np.flatnonzero(ids < 0)
    if keys.rare_id is not None:
        ids[(ids < 0) & flat.is_not_null().to_numpy()] = keys.rare_id
        named = flat.cast(pl.String).eq_missing(RARE_KEY).to_numpy()
        bad = bad[~named[bad]]
    known = ids >= 0
    owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    count = np.bincount(owner[known], minlength=len(rows))
    end = np.cumsum(count)
    return Histories(
        key_column(list(users)), ids[known], end - count, end,
        unknown_items=len(bad), first_unknown_item=flat[int(bad[0])] if len(bad) else None,
    )  # fmt: skip


def key_column(keys: Sequence[Any]) -> pl.Series:
    """Keys of Python or numpy as a column: integers if all are, else text; None is null."""
    present = [key for key in keys if key is not None]
    for key in present:
        if isinstance(key, bool | np.bool_) or not isinstance(key, SCALAR | float):
            raise UsageError(
                f"a key is {key!r}, a {type(key).__name__}; expected a string or an integer."
            )
    if present and all(isinstance(key, int | np.integer) for key in present):
        return pl.Series([None if key is None else int(key) for key in keys])
    if present and all(isinstance(key, float | int | np.integer) for key in present):
        return pl.Series([None if key is None else float(key) for key in keys])
    try:
        return pl.Series([None if key is None else str(key) for key in keys], dtype=pl.String)
    except UnicodeEncodeError as error:
        raise UsageError(f"a key is {error.object!r}, which has half a character in it.") from None
