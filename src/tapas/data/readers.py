"""Log files read into data frames: Parquet with its types, CSV and JSON lines as text.

Rows are numbered from 1, the first one after the header.
"""

import csv
import glob
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import isfinite
from pathlib import Path

import polars as pl

from tapas.data.csv_layout import Layout, find_layout
from tapas.data.local_files import literal
from tapas.data.text_lines import WINDOWS, collected, scan, text_lines, unreadable
from tapas.errors import DataError, UsageError
from tapas.escapes import shell_path
from tapas.json_toml import parse_json
from tapas.signals import defer_signals

COMPRESSED = (".gz", ".zst")
FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv", ".txt": "csv",
         ".dat": "csv", ".data": "csv", ".jsonl": "json", ".ndjson": "json",
         ".json": "json"}  # fmt: skip
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tgz", ".bz2", ".xz")
CURE = "Drop such rows with --skip-bad-rows"
MOST = 0.5  # of the rows: if more are bad, they are not bad but read in the wrong way
BLANK = "\0blank"  # no column has this name
PEEK = 100  # records of a JSON-lines file that are searched for column names
SAMPLE = 1000  # rows whose values are looked at to find columns


@dataclass(frozen=True, slots=True)
class Frame:
    """The requested columns of a file, with all its rows in order.

    A row that could not be parsed is all null in `rows` and listed in `broken`.
    """

    rows: pl.DataFrame
    broken: list[tuple[int, str]]  # (row, what is wrong with it)
    typed: bool  # False: everything is text
    notes: tuple[str, ...] = ()  # sentences on how the file was read


def file_kind(path: Path) -> str:
    """'parquet', 'csv' or 'json', from the suffix of the file."""
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    if last in SPREADSHEETS:
        raise UsageError(f"{path} is a spreadsheet. Save it as CSV (UTF-8), and name that file.")
    if last in ARCHIVES or ".tar" in suffixes:
        raise UsageError(
            f"{path} is an archive. Unpack it and name the files in it; single files may be "
            "compressed as .gz or .zst."
        )
    kind = FORMATS.get(last)
    if kind is None or (kind == "parquet" and path.suffix.lower() in COMPRESSED):
        raise UsageError(
            f"{path}: unknown file format. Known: .parquet, .csv, .tsv, .txt, .jsonl, "
            ".ndjson; all but .parquet also with .gz or .zst."
        )
    return kind


def open_layout(path: Path, separator: str | None, no_header: bool) -> Layout | None:
    """The layout of a CSV file, None for other formats, which cannot have these options."""
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty. Leave it out.")
    if file_kind(path) == "csv":
        return find_layout(path, separator, no_header=no_header)
    given = [n for n, v in (("--separator", separator), ("--no-header", no_header)) if v]
    if given:
        raise UsageError(f"{path} is not a CSV file. Leave out {' and '.join(given)}.")
    return None


def column_names(path: Path, layout: Layout | None = None) -> list[str]:
    """The columns of a file; of JSON lines, those of the first 100 records."""
    return read_sample(path, layout, num_rows=PEEK).columns


def read_sample(path: Path, layout: Layout | None = None, num_rows: int = SAMPLE) -> pl.DataFrame:
    """The first rows of a file, all columns; what cannot be read is left out."""
    layout = layout or open_layout(path, None, False)
    if layout is not None:
        return _csv_sample(path, layout, num_rows)
    if file_kind(path) == "parquet":
        frame = scan(pl.scan_parquet, path)
        try:
            frame.collect_schema()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            raise unreadable(path, error) from None
        return collected(path, frame.head(num_rows))
    columns: dict[str, list[str | None]] = {}
    first_problem = ""
    for row, line in enumerate(islice(_records(path), num_rows)):
        record, problem = _parse(line)
        if row == 0 and line.lstrip().startswith("["):
            raise DataError(
                f"{path} is one JSON list; expected one JSON object on each line. Convert it, for "
                f"example with `jq -c '.[]' {shell_path(path.name)}`."
            )
        if record is None and row == 0 and not problem.startswith("not valid"):
            raise DataError(f"{path}, row 1: {problem}. Expected one JSON object on each line.")
        first_problem = problem if row == 0 else first_problem
        for name, value in (record or {}).items():
            known = columns.setdefault(name, [])
            text = value if isinstance(value, str) or value is None else json.dumps(value)
            known += [None] * (row - len(known)) + [text]
    if first_problem and not columns:
        raise DataError(f"{path}, row 1: {first_problem}. Expected one JSON object on each line.")
    length = max(map(len, columns.values()), default=0)
    return pl.DataFrame(
        {name: known + [None] * (length - len(known)) for name, known in columns.items()},
        schema=dict.fromkeys(columns, pl.String()),
    )


def read_frame(
    path: Path, columns: list[str], *, skip_bad_rows: bool, layout: Layout | None = None
) -> Frame:
    """Read the `columns` of `path`.

    Raises `DataError` at a row that cannot be parsed, unless `skip_bad_rows`.
    """
    if file_kind(path) == "parquet":
        return Frame(collected(path, scan(pl.scan_parquet, path).select(columns)), [], True)
    if file_kind(path) == "csv":
        return _read_csv(path, columns, skip_bad_rows, layout or find_layout(path))
    texts = dict.fromkeys(columns, pl.String())
    rows, reason = None, ""
    try:
        with defer_signals():
            frame = pl.scan_ndjson(glob.escape(literal(path)), schema=texts)
        rows = frame.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
    # polars reads half of a character, as in "\ud83d", as a zero
    if rows is not None and not any(column.str.contains("\0").any() for column in rows):
        return Frame(rows, [], False)
    clean, broken, num_rows = _checked_json(path)
    if not broken and rows is not None:
        return Frame(rows, [], False)
    if broken:
        _refuse_broken(path, broken, num_rows, skip_bad_rows)
    try:
        return Frame(pl.read_ndjson(clean, schema=texts), broken, False)
    except pl.exceptions.PolarsError:
        raise DataError(f"{path} cannot be read: {reason}.") from None


def _read_csv(path: Path, columns: list[str], skip_bad_rows: bool, layout: Layout) -> Frame:
    """By polars where it can read the file; or else rewritten row by row, which is slow."""
    if layout.is_plain:
        # polars notices surplus values only if it reads all columns
        blank = pl.all_horizontal(pl.all().is_null()).alias(BLANK)
        try:
            rows = _scan_csv(path, layout).select(*columns, blank).collect(engine="streaming")
            return Frame(rows.drop(BLANK), [], False)
        except (pl.exceptions.PolarsError, OSError) as error:
            layout = _after(error, layout)
    clean, broken, num_rows = _checked_csv(path, layout)
    if broken:
        _refuse_broken(path, broken, num_rows, skip_bad_rows)
    rows = pl.read_csv(clean, infer_schema=False, glob=False).select(columns)
    notes = (f"read {path} as Windows-1252: it is not UTF-8",) if layout.encoding == WINDOWS else ()
    return Frame(rows, broken, False, notes)


def _after(error: Exception, layout: Layout) -> Layout:
    """The layout to try after an error of polars: text that is not UTF-8 is Windows-1252."""
    is_utf8 = not any(word in str(error).lower() for word in ("utf-8", "utf8"))
    return layout if is_utf8 else replace(layout, encoding=WINDOWS)


def _refuse_broken(
    path: Path, broken: list[tuple[int, str]], num_rows: int, skip_bad_rows: bool
) -> None:
    if skip_bad_rows:
        return
    row, problem = broken[0]
    if "values where" in problem and len(broken) > MOST * num_rows:
        raise DataError(
            f"{path}, row {row}: {problem}, as in {len(broken):,} of {num_rows:,} rows. Name the "
            "missing column in the header, or give another --separator."
        )
    raise DataError(
        f"{path}, row {row}: {problem}. {CURE} ({len(broken)} broken among {num_rows:,} rows)."
    )


def _scan_csv(path: Path, layout: Layout) -> pl.LazyFrame:
    frame = scan(
        pl.scan_csv,
        path,
        infer_schema=False,
        separator=layout.separator,
        skip_lines=layout.num_skipped,
        has_header=layout.header,
    )
    if layout.header:
        return frame
    names = frame.collect_schema().names()
    return frame.rename({name: str(place) for place, name in enumerate(names, start=1)})


def _csv_sample(path: Path, layout: Layout, num_rows: int) -> pl.DataFrame:
    """Broken rows are left out: they are reported when the file is read."""
    if layout.is_plain:
        try:
            return _scan_csv(path, layout).head(num_rows).collect(engine="streaming")
        except (pl.exceptions.PolarsError, OSError) as error:
            layout = _after(error, layout)
    clean, _, _ = _checked_csv(path, layout, num_rows)
    return pl.read_csv(clean, infer_schema=False, glob=False)


def _checked_csv(
    path: Path, layout: Layout, num_rows: int | None = None
) -> tuple[io.BytesIO, list[tuple[int, str]], int]:
    """The file with broken rows replaced by empty ones, the broken rows, the number of rows.

    Slow; for files that polars cannot read. Surplus values that are empty are left out.
    """
    lines: Iterator[str] = islice(text_lines(path, layout.encoding), layout.num_skipped, None)
    delimiter = layout.separator
    if len(delimiter) > 1:
        lines, delimiter = (line.replace(layout.separator, "\x1f") for line in lines), "\x1f"
    reader = csv.reader(
        (line + "\n" for line in lines),
        delimiter=delimiter,
        strict=True,
        skipinitialspace=layout.spaces,
    )
    try:
        header = [name.lstrip("\ufeff") for name in next(reader, [])]
    except csv.Error as error:
        raise DataError(f"{path}, header: {_csv_problem(error)}") from None
    rows: Iterator[list[str]] = reader
    if not layout.header:
        rows, header = chain([header], reader), [str(n + 1) for n in range(len(header))]
    good, broken, row = io.StringIO(), list[tuple[int, str]](), 0
    writer = csv.writer(good)
    writer.writerow(header)
    try:
        for row, values in enumerate(islice(rows, num_rows), start=1):
            if any(values[len(header) :]):
                broken.append((row, f"{len(values)} values where the header names {len(header)}"))
                values = [""] * len(header)
            writer.writerow(values[: len(header)])
    except csv.Error as error:
        raise DataError(f"{path}, row {row + 1}: {_csv_problem(error)}") from None
    return io.BytesIO(good.getvalue().encode()), broken, row


def _csv_problem(error: csv.Error) -> str:
    if "new-line" in str(error):
        return (
            "a carriage return stands within a value without quotes. End lines with \\n or \\r\\n, "
            "and put such values in quotes."
        )
    if "expected after" in str(error):
        return "a quote ends within a value. Write quotes inside of values twice."
    if "limit" in str(error):
        return "a value is longer than 131,072 characters. Is a quote before it never closed?"
    return (
        "a quote is opened and never closed, so the rows after it cannot be separated. Correct the "
        "file."
    )


def _checked_json(path: Path) -> tuple[io.BytesIO, list[tuple[int, str]], int]:
    """Like `_checked_csv`, for JSON lines."""
    good, broken, row = io.StringIO(), list[tuple[int, str]](), 0
    for row, line in enumerate(_records(path), start=1):
        record, problem = _parse(line)
        if record is None:
            broken.append((row, problem))
            line = "{}"
        good.write(line + "\n")
    return io.BytesIO(good.getvalue().encode()), broken, row


def first_object(path: Path, column: str, rows: Iterable[int]) -> int | None:
    """The first of `rows`, counted from 0, in which `column` is an object or list, not text."""
    wanted = set(rows)
    for row, line in enumerate(_records(path)):
        if row in wanted:
            record, _ = _parse(line)
            if isinstance((record or {}).get(column), dict | list):
                return row
    return None


def _parse(line: str) -> tuple[dict[str, object] | None, str]:
    try:
        record = parse_json(line)
    except json.JSONDecodeError as error:
        return None, f"not valid JSON ({error.msg} at character {error.pos + 1})"
    except ValueError as error:
        return None, f"not valid JSON ({error})"
    if not isinstance(record, dict):
        return None, f"a JSON {type(record).__name__} where an object is expected"
    if any(isinstance(value, float) and not isfinite(value) for value in record.values()):
        return None, "not valid JSON (a number is NaN, infinite or too large)"
    return record, ""


def _records(path: Path) -> Iterator[str]:
    lines = (line.removeprefix("\ufeff") for line in text_lines(path))
    return (line for line in lines if line.strip())
