"""Log files read into data frames: Parquet with its types, CSV and JSON lines as text.

Rows are numbered from 1, the first one after the header.
"""

import csv
import glob
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tapas.errors import DataError, UsageError
from tapas.interruptions import defer_signals

COMPRESSED = (".gz", ".zst")
FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv", ".txt": "csv",
         ".jsonl": "json", ".ndjson": "json"}  # fmt: skip
CURE = "Drop such rows with --skip-bad-rows"
BLANK = "\0blank"  # no column has this name
PEEK = 100  # records of a JSON-lines file that are searched for column names


@dataclass(frozen=True, slots=True)
class Frame:
    """The requested columns of a file, with all its rows in order.

    A row that could not be parsed is all null in `rows` and listed in `broken`.
    """

    rows: pl.DataFrame
    broken: list[tuple[int, str]]  # (row, what is wrong with it)
    typed: bool  # False: everything is text


def file_kind(path: Path) -> str:
    """'parquet', 'csv' or 'json', from the suffix of the file."""
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    kind = FORMATS.get(suffixes[-1] if suffixes else "")
    if kind is None or (kind == "parquet" and path.suffix.lower() in COMPRESSED):
        raise UsageError(
            f"{path}: unknown file format. Known: .parquet, .csv, .tsv, .jsonl, "
            ".ndjson; all but .parquet also with .gz or .zst."
        )
    return kind


def column_names(path: Path) -> list[str]:
    """The columns of a file; of JSON lines, those of the first 100 records."""
    kind = file_kind(path)
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty. Leave it out.")
    if kind == "parquet":
        return _checked_schema(path, _scan(pl.scan_parquet, path)).collect_schema().names()
    if kind == "csv":
        options = {"infer_schema": False, "separator": separator(path), "n_rows": 0}
        return _collected(path, _scan(pl.scan_csv, path, **options)).columns
    names: dict[str, None] = {}
    for row, line in zip(range(PEEK), _records(path), strict=False):
        record, problem = _parse(line)
        if record is None and row == 0 and not problem.startswith("not valid"):
            raise DataError(f"{path}, row 1: {problem}. Expected one JSON object on each line.")
        names |= dict.fromkeys(record or {})
    return list(names)


def separator(path: Path) -> str:
    """The separator of a CSV file: the most frequent of , tab ; | in its first line."""
    first = next(_records(path), "")
    return max(",\t;|", key=first.count)


def read_frame(path: Path, columns: list[str], *, skip_bad_rows: bool) -> Frame:
    """Read the `columns` of `path`.

    Raises `DataError` at a row that cannot be parsed, unless `skip_bad_rows`.
    """
    kind = file_kind(path)
    if kind == "parquet":
        return Frame(_collected(path, _scan(pl.scan_parquet, path).select(columns)), [], True)
    texts = dict.fromkeys(columns, pl.String())
    try:
        if kind == "csv":
            scan = _scan(pl.scan_csv, path, infer_schema=False, separator=separator(path))
            # polars notices surplus values only if it reads all columns
            blank = pl.all_horizontal(pl.all().is_null()).alias(BLANK)
            rows = scan.select(*columns, blank).collect(engine="streaming").drop(BLANK)
        else:
            with defer_signals():
                scan = pl.scan_ndjson(glob.escape(str(path)), schema=texts)
            rows = scan.collect()
        return Frame(rows, [], False)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
    checked = _checked_csv if kind == "csv" else _checked_json
    clean, broken, num_rows = checked(path)
    if not broken:
        raise DataError(f"{path} cannot be read: {reason}.")
    if not skip_bad_rows:
        row, problem = broken[0]
        raise DataError(
            f"{path}, row {row}: {problem}. {CURE} ({len(broken)} broken among {num_rows:,} rows)."
        )
    if kind == "csv":
        return Frame(pl.read_csv(clean, infer_schema=False, columns=columns), broken, False)
    return Frame(pl.read_ndjson(clean, schema=texts), broken, False)


def _checked_csv(path: Path) -> tuple[io.BytesIO, list[tuple[int, str]], int]:
    """The file with broken rows replaced by empty ones, the broken rows, the number of rows.

    Slow; used only after polars has failed to read the file.
    """
    reader = csv.reader(
        (line + "\n" for line in _lines(path)), delimiter=separator(path), strict=True
    )
    header = next(reader)
    good, broken, row = io.StringIO(), list[tuple[int, str]](), 0
    writer = csv.writer(good)
    writer.writerow(header)
    try:
        for row, values in enumerate(reader, start=1):
            if len(values) > len(header):
                broken.append((row, f"{len(values)} values where the header names {len(header)}"))
                values = [""] * len(header)
            writer.writerow(values)
    except csv.Error:
        raise DataError(
            f"{path}, row {row + 1}: a quote is opened and never closed, so the rows after it "
            "cannot be separated. Correct the file."
        ) from None
    return io.BytesIO(good.getvalue().encode()), broken, row


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


def _parse(line: str) -> tuple[dict[str, object] | None, str]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        return None, f"not valid JSON ({error.msg} at character {error.pos + 1})"
    if not isinstance(record, dict):
        return None, f"a JSON {type(record).__name__} where an object is expected"
    return record, ""


def _records(path: Path) -> Iterator[str]:
    return (line for line in _lines(path) if line.strip())


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file, read in blocks."""
    start, size = 0, 1000
    while True:
        block = _collected(path, _scan(pl.scan_lines, path).slice(start, size))
        yield from block.to_series()
        if block.height < size:
            return
        start, size = start + size, min(16 * size, 1 << 22)


def _scan(scan: Callable[..., pl.LazyFrame], path: Path, **options: object) -> pl.LazyFrame:
    with defer_signals():
        return scan(path, glob=False, **options)


def _collected(path: Path, frame: pl.LazyFrame) -> pl.DataFrame:
    try:
        return frame.collect(engine="streaming")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _unreadable(path, error) from None


def _checked_schema(path: Path, frame: pl.LazyFrame) -> pl.LazyFrame:
    try:
        frame.collect_schema()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _unreadable(path, error) from None
    return frame


def _unreadable(path: Path, error: BaseException) -> DataError:
    reason = str(error).splitlines()[0].rstrip(".")
    return DataError(
        f"{path} cannot be read: {reason}. It may be damaged or truncated; get a new copy."
    )
