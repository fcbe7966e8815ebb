"""All files of a source as three arrays: who, what, when. Bad rows are named or counted.

A text is a log, too: a document is a user, a word an item, its place the time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tapas.data.columns import resolve_columns
from tapas.data.keys import Coded, code_keys, plain_keys
from tapas.data.readers import CURE, Frame, column_names, read_frame
from tapas.data.source import LogSource
from tapas.data.times import FILE_ORDER, PLACE, whole_times
from tapas.errors import DataError

EXAMPLES = 5  # bad rows that a report quotes
WORD = r"[a-z0-9]+(?:'[a-z]+)?"


@dataclass(slots=True)
class RawEvents:
    """Events in file order: keys as codes, times as int64."""

    user: Coded
    item: Coded
    time: NDArray[np.int64]
    report: dict[str, object]


@dataclass(slots=True)
class _Tally:
    """What reading came across, over all files."""

    num_rows: int = 0
    num_bad: int = 0
    examples: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    guessed: list[str] = field(default_factory=list)
    time_kind: str = FILE_ORDER
    time_file: Path | None = None
    typed: bool = True

    def add_bad(self, path: Path, row: int, problem: str) -> None:
        self.num_bad += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{path}, row {row}: {problem}")


def read_events(source: LogSource, status: Callable[[str], None]) -> RawEvents:
    """Read `source`. Rows without user, item or time are an error unless they are skipped."""
    tally = _Tally()
    parts: dict[str, list[pl.Series]] = {}
    for path in source.paths():
        status(f"reading {path}")
        for role, column in _read(source, path, tally).items():
            parts.setdefault(role, []).append(column)
    if not sum(column.len() for column in next(iter(parts.values()))):
        raise DataError(
            f"no usable row in {', '.join(source.files)}: {tally.num_rows:,} rows read, "
            f"{tally.num_bad:,} of them bad. There is nothing to learn from."
        )
    status("coding keys")
    if source.text is None:
        user = code_keys(parts.pop("user"), typed=tally.typed)
        item = code_keys(parts.pop("item"), typed=tally.typed)
        if "time" in parts:
            time = pl.concat(parts.pop("time"), rechunk=True).to_numpy()
        else:
            time = np.arange(len(user.codes), dtype=np.int64)
    else:
        user, item = _documents(source, parts, tally)
        time = places(user.codes)
    report: dict[str, object] = {
        "rows": tally.num_rows,
        "bad_rows": tally.num_bad,
        "bad_examples": tally.examples,
        "columns": tally.columns,
        "guessed": tally.guessed,
        "time_kind": tally.time_kind,
    }
    return RawEvents(user, item, time, report)


def _read(source: LogSource, path: Path, tally: _Tally) -> dict[str, pl.Series]:
    """The file's good rows, one column for each role."""
    told, guessed = resolve_columns(source, column_names(path), path)
    if tally.columns and told != tally.columns:
        raise DataError(
            f"{path} has {_listed(told)}, but the files before it {_listed(tally.columns)}. "
            "Name the columns, or read the files apart."
        )
    tally.columns, tally.guessed = told, guessed
    frame = read_frame(path, list(told.values()), skip_bad_rows=source.skip_bad_rows)
    tally.num_rows += frame.rows.height
    tally.typed = tally.typed and frame.typed
    raw = {role: frame.rows[name] for role, name in told.items()}
    columns = {role: _normal(role, raw[role], path, tally) for role in raw}
    keep = _good(source, path, frame, raw, columns, tally)
    if keep is not None:
        columns = {role: column.filter(keep) for role, column in columns.items()}
    return columns


def _normal(role: str, column: pl.Series, path: Path, tally: _Tally) -> pl.Series:
    """The column of a role as what it is for; null where a value will not do."""
    if role == "text":
        tally.time_kind = PLACE
        if column.dtype != pl.String:
            raise DataError(
                f"{path}: column '{column.name}' has type {column.dtype}; expected text."
            )
        return column
    if role != "time":
        return plain_keys(column, path)
    times, kind = whole_times(column, path)
    if times.null_count() < times.len():
        if tally.time_file is not None and kind != tally.time_kind:
            raise DataError(
                f"{path}: column '{column.name}' is read as a {kind}, but in {tally.time_file} "
                f"as a {tally.time_kind}. Write both alike."
            )
        tally.time_kind, tally.time_file = kind, path
    return times


def _good(
    source: LogSource,
    path: Path,
    frame: Frame,
    raw: dict[str, pl.Series],
    columns: dict[str, pl.Series],
    tally: _Tally,
) -> pl.Series | None:
    """True for the rows to keep, None for all; an error at the first bad one, unless skipped."""
    for row, problem in frame.broken:
        tally.add_bad(path, row, problem)
    if not any(column.null_count() for column in columns.values()):
        return None
    missing = pl.DataFrame([column.is_null().alias(role) for role, column in columns.items()])
    keep = ~missing.select(pl.any_horizontal(pl.all())).to_series()
    bad = ~keep
    if not frame.typed:  # a row of nothing is a blank line, or a broken row counted above
        empty = [column.is_null().alias(role) for role, column in raw.items()]
        bad &= ~pl.DataFrame(empty).select(pl.all_horizontal(pl.all())).to_series()
    rows = bad.arg_true()
    for row in rows.head(EXAMPLES):
        role = next(role for role in columns if missing[role][row])
        value = raw[role][row]
        name = tally.columns[role]
        empty_cell = value is None or value == "" or value != value
        problem = f"{name} is empty" if empty_cell else f"{name} is {value!r}, not a time"
        if not source.skip_bad_rows:
            raise DataError(
                f"{path}, row {row + 1}: {problem}. {CURE} ({rows.len():,} found among "
                f"{frame.rows.height:,} rows)."
            )
        tally.add_bad(path, row + 1, problem)
    tally.num_bad += max(0, rows.len() - EXAMPLES)
    return keep


def _documents(
    source: LogSource, parts: dict[str, list[pl.Series]], tally: _Tally
) -> tuple[Coded, Coded]:
    """Users and items of a text: its documents and words. Documents without words vanish."""
    words, counts = words_of(pl.concat(parts["text"]), source.split)
    if not words.len():
        raise DataError(
            f"no words in column '{source.text}' of {', '.join(source.files)}. "
            "Try split='spaces', or name another column."
        )
    if "group" in parts:
        document = code_keys(parts["group"], typed=tally.typed)
    else:
        number = np.arange(len(counts), dtype=np.uint32)
        document = Coded(number, pl.Series(np.arange(len(counts))))
    codes = np.repeat(document.codes, counts)
    return Coded(codes, document.keys), code_keys([words], typed=True)


def words_of(texts: pl.Series, split: str) -> tuple[pl.Series, NDArray[np.int64]]:
    """The words of all `texts` one after the other, (N,), and how many each text has.

    `"words"`: runs of a-z and 0-9 in lower case, with what follows an apostrophe;
    `"spaces"`: whatever stands between spaces, as written.
    """
    found = texts.str.to_lowercase() if split == "words" else texts
    found = found.str.extract_all(WORD if split == "words" else r"\S+")
    counts = found.list.len().cast(pl.Int64).to_numpy()
    return found.filter(found.list.len() > 0).explode(), counts


def places(document: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The place 0, 1, ... of every word within its document, documents in any order: (N,)."""
    order = np.argsort(document, kind="stable")
    starts = np.flatnonzero(np.diff(document[order], prepend=np.uint32(0xFFFFFFFF)))
    sizes = np.diff(starts, append=len(document))
    place = np.empty(len(document), dtype=np.int64)
    place[order] = np.arange(len(document)) - np.repeat(starts, sizes)
    return place


def _listed(columns: dict[str, str]) -> str:
    return ", ".join(f"{role} '{name}'" for role, name in columns.items())
