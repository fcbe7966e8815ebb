"""The events of all files of a source as arrays: user, item, time, and weight if there is one.

Text is read as a log, too: a document is a user, a word an item, its position the time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tapas.data.column_words import is_event_type
from tapas.data.columns import Present, resolve_columns
from tapas.data.dates import ORDERS, UnclearDatesError
from tapas.data.keys import CodedKeys, code_keys, normalize_keys
from tapas.data.readers import (
    CURE,
    MOST,
    Frame,
    file_kind,
    first_object,
    open_layout,
    read_frame,
    read_sample,
)
from tapas.data.row_filter import RowFilter
from tapas.data.source import LogSource
from tapas.data.times import FILE_ORDER, READ_WITHOUT_FORMAT, TEXT_POSITION, parse_times
from tapas.data.weights import parse_weights
from tapas.errors import DataError, UsageError
from tapas.escapes import shell_word, short
from tapas.phrases import counted

MAX_EXAMPLES = 5  # bad rows quoted in the report
MAX_EVENT_TYPES = 20  # a column of more values is no type of event
MISSING_WORDS = ["NULL", "null", "NaN", "nan", "None", "N/A", "n/a", "#N/A", "\\N", "undefined"]
ROUNDED_KEY = r"^[0-9]([.,][0-9]+)?[eE]\+[0-9]+$"  # as spreadsheets show long numbers
WORD = r"[a-z0-9]+(?:'[a-z]+)?"


@dataclass(slots=True)
class RawEvents:
    """Events in file order: keys as codes, times as int64."""

    user: CodedKeys
    item: CodedKeys
    time: NDArray[np.int64]
    report: dict[str, object]
    weight: NDArray[np.float64] | None = None


@dataclass(slots=True)
class _Tally:
    """What was found while reading, over all files."""

    known_order: str | None = None
    num_rows: int = 0
    num_bad: int = 0
    examples: list[str] = field(default_factory=list)
    bad_kinds: dict[str, int] = field(default_factory=dict)  # role without a value, or "broken"
    columns: dict[str, str] = field(default_factory=dict)
    guessed: list[str] = field(default_factory=list)
    by_type: list[str] = field(default_factory=list)  # of `guessed`
    unused: dict[str, None] = field(default_factory=dict)  # columns, in order
    event_types: dict[str, dict[str, int]] = field(default_factory=dict)  # column: counts of values
    notes: list[str] = field(default_factory=list)
    num_chosen: int = 0  # rows that fulfil --where
    time_kind: str = FILE_ORDER
    time_file: Path | None = None
    written: str | None = None  # how times are: order of numeric dates, or unit of numbers
    written_in: str = ""  # a value that shows it, and its file
    typed: bool = True

    def add_kind(self, kind: str, number: int) -> None:
        if number:
            self.bad_kinds[kind] = self.bad_kinds.get(kind, 0) + number

    def add_bad(self, path: Path, row: int, problem: str) -> None:
        self.num_bad += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{path}, row {row}: {problem}")


def read_events(
    source: LogSource, status: Callable[[str], None], order: str | None = None
) -> RawEvents:
    """Read all files of `source`.

    `order` is that of day and month in dates which do not show theirs.

    Raises `DataError` at the first row without user, item or time, unless
    `source.skip_bad_rows`, and if no row is left.
    """
    tally = _Tally(known_order=order)
    columns: dict[str, list[pl.Series]] = {}
    rows = RowFilter(source.where, source.time_format, order)
    for path in source.repeated():
        status(f"{path} is another name of a file that is read; it counts once.")
    for path in source.paths():
        status(f"Reading {path}.")
        for role, column in _read(source, path, rows, tally).items():
            columns.setdefault(role, []).append(column)
    rows.check(tally.num_rows, tally.num_chosen)
    if not sum(column.len() for column in next(iter(columns.values()))):
        raise DataError(
            f"no usable row in {', '.join(source.files)}: {tally.num_rows:,} rows read, "
            f"{tally.num_bad:,} of them bad. Check the file and the names of the columns."
        )
    status("Indexing users and items.")
    weight: NDArray[np.float64] | None = None
    if source.text is None:
        user = code_keys(columns.pop("user"), typed=tally.typed)
        item = code_keys(columns.pop("item"), typed=tally.typed)
        if "time" in columns:
            time = pl.concat(columns.pop("time"), rechunk=True).to_numpy()
        else:
            time = np.arange(len(user.codes), dtype=np.int64)
        if "weight" in columns:
            weight = pl.concat(columns.pop("weight"), rechunk=True).to_numpy()
    else:
        user, item = _documents(source, columns, tally)
        time = word_positions(user.codes)
    report: dict[str, object] = {
        "rows": tally.num_rows,
        "bad_rows": tally.num_bad,
        "bad_examples": tally.examples,
        "bad_kinds": tally.bad_kinds,
        "columns": tally.columns,
        "guessed": tally.guessed,
        "found_by_type": tally.by_type,
        "unused": list(tally.unused),
        "where": list(source.where),
        "chosen_rows": tally.num_chosen,
        "event_types": {
            name: counts
            for name, counts in tally.event_types.items()
            if 1 < len(counts) <= MAX_EVENT_TYPES
        },
        "time_kind": tally.time_kind,
        "date_order": tally.written if tally.written in ORDERS else None,
        "reading_notes": tally.notes + _doubtful_keys(user, item, tally.columns),
    }
    return RawEvents(user, item, time, report, weight)


def _read(source: LogSource, path: Path, rows: RowFilter, tally: _Tally) -> dict[str, pl.Series]:
    """The valid rows of a file, one column for each role."""
    layout = open_layout(path, source.separator, source.no_header)
    sample = read_sample(path, layout)
    present = Present(path, sample, layout)
    columns = resolve_columns(source, present)
    names = columns.names
    if tally.columns and names != tally.columns:
        raise DataError(
            f"{path} has {_listed(names)}, but the files before it have {_listed(tally.columns)}. "
            "Name the columns, or read the files separately."
        )
    tally.columns, tally.guessed, tally.by_type = names, columns.guessed, columns.by_type
    for name in rows.columns:
        if wrong := present.check(name, "--where"):
            raise UsageError(f"{path} has {wrong} Columns: {present.listed()}.")
    used = list(dict.fromkeys([*names.values(), *rows.columns]))
    unused = [name for name in present.names if name not in used]
    tally.unused |= dict.fromkeys(unused)
    kinds = [name for name in unused if is_event_type(name)]
    frame = read_frame(path, used + kinds, skip_bad_rows=source.skip_bad_rows, layout=layout)
    tally.num_rows += frame.rows.height
    tally.typed = tally.typed and frame.typed
    tally.notes += frame.notes
    for name in kinds:
        _count_values(frame.rows[name], tally.event_types.setdefault(name, {}))
    raw = {role: frame.rows[name] for role, name in names.items()}
    if file_kind(path) == "json":
        _refuse_objects(raw, path)
    chosen = rows.choose(frame.rows, path, names.get("time")) if rows.columns else None
    tally.num_chosen += frame.rows.height if chosen is None else int(chosen.sum())
    events = {role: _normalize(role, raw[role], source, path, tally) for role in raw}
    keep = _valid_rows(source, present, frame, raw, events, chosen, tally)
    if keep is not None:
        events = {role: column.filter(keep) for role, column in events.items()}
    return events


def _refuse_objects(raw: dict[str, pl.Series], path: Path) -> None:
    """Raise if a user or an item is an object or a list, which JSON may have."""
    for role in [role for role in ("user", "item") if role in raw]:
        doubtful = raw[role].str.contains(r"^[{\[]").fill_null(False).arg_true()
        row = first_object(path, raw[role].name, doubtful) if len(doubtful) else None
        if row is not None:
            raise DataError(
                f"{path}, row {row + 1}: {raw[role].name} is {raw[role][row]}; "
                "expected a number or text. Write its id as a field of its own."
            )


def _count_values(column: pl.Series, counts: dict[str, int]) -> None:
    """Add the most frequent values of `column` to `counts`, one more than a type may have."""
    if column.dtype.is_nested():
        return
    found = column.drop_nulls().cast(pl.String).value_counts(sort=True).head(MAX_EVENT_TYPES + 1)
    for value, number in found.iter_rows():
        counts[value] = counts.get(value, 0) + number


def _normalize(
    role: str, column: pl.Series, source: LogSource, path: Path, tally: _Tally
) -> pl.Series:
    """A column converted to the type of its role, null where a value is invalid."""
    if role == "text":
        tally.time_kind = TEXT_POSITION
        if column.dtype != pl.String:
            raise DataError(
                f"{path}: column '{column.name}' has type {column.dtype}; expected text."
            )
        return column
    if role == "weight":
        return parse_weights(column, path)
    if role != "time":
        return normalize_keys(column, path)
    times = parse_times(column, path, source.time_format, tally.known_order)
    if times.values.null_count() < times.values.len():
        if tally.time_file is not None and times.kind != tally.time_kind:
            raise DataError(
                f"{path}: column '{column.name}' is read as a {times.kind}, but in "
                f"{tally.time_file} as a {tally.time_kind}. Write times the same way in all files."
            )
        tally.time_kind, tally.time_file = times.kind, path
        if times.written is not None:
            how = times.written if times.written in ORDERS else f"in {times.written}"
            shown = f"{how} ({times.example}"
            if tally.written is not None and times.written != tally.written:
                raise DataError(
                    f"{path}: {column.name} is written {shown}), but {tally.written_in}). Write "
                    "times the same way in all files."
                )
            tally.written, tally.written_in = times.written, f"{shown} of {path}"
    tally.notes += times.notes
    return times.values


def _valid_rows(
    source: LogSource,
    present: Present,
    frame: Frame,
    raw: dict[str, pl.Series],
    columns: dict[str, pl.Series],
    chosen: pl.Series | None,
    tally: _Tally,
) -> pl.Series | None:
    """A mask of the rows to keep, None for all. Raises at a bad row unless these are skipped.

    Rows that were not `chosen` are neither kept nor bad.
    """
    path = present.path
    for row, problem in frame.broken:
        tally.add_bad(path, row, problem)
    tally.add_kind("broken", len(frame.broken))
    if len(frame.broken) > MOST * frame.rows.height:
        row, problem = frame.broken[0]
        raise DataError(
            f"{path}, row {row}: {problem}, as in {len(frame.broken):,} of "
            f"{frame.rows.height:,} rows, too many to skip. Check its format and --separator."
        )
    if not any(column.null_count() for column in columns.values()):
        return chosen
    missing = pl.DataFrame([column.is_null().alias(role) for role, column in columns.items()])
    keep = ~missing.select(pl.any_horizontal(pl.all())).to_series()
    bad = ~keep
    if not frame.typed:  # an empty row is a blank line, or a broken row counted above
        nulls = [column.is_null().alias(role) for role, column in raw.items()]
        empty = pl.DataFrame(nulls).select(pl.all_horizontal(pl.all())).to_series()
        bad &= ~empty
        num_empty = int(empty.sum()) - len(frame.broken)
        if num_empty > 0:
            tally.notes += (f"left out {counted(num_empty, 'empty row')} of {path}",)
    if chosen is not None:
        keep &= chosen
        bad &= chosen
    rows = bad.arg_true()
    if "time" in raw and source.skip_bad_rows:
        unread = (missing["time"] & bad & ~_is_empty(raw["time"])).arg_true()
        if len(unread) > MOST * (len(unread) + int(keep.sum())):
            problem = _problem("time", raw["time"], unread[0], source)
            is_typed = raw["time"].dtype.is_temporal()
            raise UnclearDatesError(
                f"{path}, row {unread[0] + 1}: {problem}, as in {len(unread):,} of "
                f"{frame.rows.height:,} rows, too many to skip.",
                _cure_of_column(source, present, "time", is_typed),
            )
    for row in rows.head(MAX_EXAMPLES):
        role = next(role for role in columns if missing[role][row])
        problem = _problem(role, raw[role], row, source)
        if not source.skip_bad_rows:
            num_alike = int((missing[role] & bad).sum())
            if num_alike > MOST * (num_alike + int(keep.sum())):
                no_format = bool(_is_empty(raw[role])[row]) or raw[role].dtype.is_temporal()
                cure = _cure_of_column(source, present, role, no_format)
                problem += f", as in {num_alike:,} of {frame.rows.height:,} rows"
            else:
                cure = f"{CURE} ({rows.len():,} found among {frame.rows.height:,} rows)."
            raise DataError(f"{path}, row {row + 1}: {problem}. {cure}")
        tally.add_bad(path, row + 1, problem)
    tally.num_bad += max(0, rows.len() - MAX_EXAMPLES)
    for role in columns:  # a row counts once, for the first role that has no value
        tally.add_kind(role, int((missing[role] & bad).sum()))
        bad &= ~missing[role]
    return keep


def _is_empty(column: pl.Series) -> pl.Series:
    """A mask of the values that are not there: null, "" or NaN."""
    empty = column.is_null()
    if column.dtype == pl.String:
        empty |= (column == "").fill_null(False)
    if column.dtype.is_float():
        empty |= column.is_nan().fill_null(False)
    return empty


def _problem(role: str, column: pl.Series, row: int, source: LogSource) -> str:
    """What is wrong with the value of `role` in a row."""
    if _is_empty(column)[row]:
        return f"{column.name} is empty"
    wanted = "not a number above 0" if role == "weight" else "not a time"
    if role == "time" and source.time_format is not None:
        wanted = f"which does not fit --time-format {source.time_format!r}"
    if column.dtype.is_temporal():
        return (
            f"{column.name} is {column.to_physical()[row]} as {column.dtype}, which is not between "
            "the years 1 and 9999"
        )
    value = column[row]
    shown = short(value) if isinstance(value, str) and len(value) > 80 else repr(value)
    return f"{column.name} is {shown}, {wanted}"


def _cure_of_column(source: LogSource, present: Present, role: str, no_format: bool) -> str:
    """What to do where most rows have no valid value for `role`."""
    if role != "time" or no_format:
        return f"Name another column with --{role}. Columns: {present.listed()}."
    if source.time_format is not None:
        return "Correct the format, or name another column with --time."
    return (
        "Name their format, as in --time-format '%m/%d/%Y %H:%M', or another column with --time. "
        f"Read without a format are {READ_WITHOUT_FORMAT}."
    )


def _doubtful_keys(user: CodedKeys, item: CodedKeys, columns: dict[str, str]) -> list[str]:
    """Notes on keys such as NULL or 4.00639E+12, which are read as any other."""
    notes = []
    for role, coded in (("user", user), ("item", item)):
        if coded.keys.dtype != pl.String or role not in columns:
            continue
        for code in coded.keys.is_in(MISSING_WORDS).fill_null(False).arg_true():
            number, name = int(np.count_nonzero(coded.codes == code)), columns[role]
            notes.append(
                f"{counted(number, 'row has', 'rows have')} the {role} "
                f"'{coded.keys[code]}', read as any other; leave them out with --where "
                + shell_word(f"{name}!={coded.keys[code]}")
            )
        rounded = coded.keys.str.contains(ROUNDED_KEY).fill_null(False)
        if rounded.any():
            number = int(np.count_nonzero(rounded.to_numpy()[coded.codes]))
            notes.append(
                f"{counted(number, 'row has', 'rows have')} a rounded {role}, such as "
                f"'{coded.keys.filter(rounded)[0]}': a spreadsheet may have made one id of "
                "several; export the ids as text"
            )
    return notes


def _documents(
    source: LogSource, columns: dict[str, list[pl.Series]], tally: _Tally
) -> tuple[CodedKeys, CodedKeys]:
    """Users and items of a text: documents and words. Documents without words are left out."""
    words, counts = tokenize(pl.concat(columns["text"]), source.split)
    if not words.len():
        raise DataError(
            f"no words in column '{source.text}' of {', '.join(source.files)}. "
            "Use split='spaces', or name another column."
        )
    if "group" in columns:
        document = code_keys(columns["group"], typed=tally.typed)
    else:
        number = np.arange(len(counts), dtype=np.uint32)
        document = CodedKeys(number, pl.Series(np.arange(len(counts))))
    codes = np.repeat(document.codes, counts)
    return CodedKeys(codes, document.keys), code_keys([words], typed=True)


def tokenize(texts: pl.Series, split: str) -> tuple[pl.Series, NDArray[np.int64]]:
    """The words of all `texts`, concatenated, (N,), and the number of words of each text.

    `split="words"`: runs of a-z and 0-9 in lower case, including what follows an apostrophe;
    `split="spaces"`: everything between spaces, unchanged.
    """
    found = texts.str.to_lowercase() if split == "words" else texts
    found = found.str.extract_all(WORD if split == "words" else r"\S+")
    counts = found.list.len().cast(pl.Int64).to_numpy()
    return found.filter(found.list.len() > 0).explode(), counts


def word_positions(document: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The position 0, 1, ... of each word in its document, (N,); documents may be interleaved."""
    order = np.argsort(document, kind="stable")
    starts = np.flatnonzero(np.diff(document[order], prepend=np.uint32(0xFFFFFFFF)))
    sizes = np.diff(starts, append=len(document))
    position = np.empty(len(document), dtype=np.int64)
    position[order] = np.arange(len(document)) - np.repeat(starts, sizes)
    return position


def _listed(columns: dict[str, str]) -> str:
    return ", ".join(f"{role} '{name}'" for role, name in columns.items())
