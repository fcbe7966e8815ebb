"""Small tables as files: results written, and keys read, in the format of the suffix."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from tapas.atomic_file import atomic_write
from tapas.errors import DataError, UsageError

SUFFIXES = (".parquet", ".jsonl", ".csv")


def check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path} must end in one of {', '.join(SUFFIXES)}.")


def write_frame(path: Path, columns: Mapping[str, Sequence[Any] | Any]) -> None:
    """Write `columns` to `path` as Parquet, JSON lines or CSV; a failure leaves no file."""
    check_suffix(path)
    frame = pl.DataFrame({name: _column(values) for name, values in columns.items()})
    with atomic_write(path) as unfinished:
        try:
            if path.suffix == ".parquet":
                frame.write_parquet(unfinished)
            elif path.suffix == ".jsonl":
                frame.write_ndjson(unfinished)
            else:
                frame.write_csv(unfinished)
        except pl.exceptions.PolarsError as error:
            raise OSError(str(error).split("\n")[0]) from error


def _column(values: Any) -> Any:
    """`values`, converted to text if types are mixed, such as integer keys and "(rare)"."""
    mixed = isinstance(values, list) and len({type(value) for value in values}) > 1
    return [str(value) for value in values] if mixed else values


def read_keys(path: Path, column: str | None) -> list[str]:
    """The keys in `path`, as text: a column of a Parquet, CSV or JSON-lines file, or text lines.

    `column` defaults to the first one. Raises `UsageError` if file or column is missing,
    `DataError` if the file cannot be read or a key is empty.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}.")
    try:
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path)
        elif path.suffix in (".csv", ".tsv"):
            separator = "\t" if path.suffix == ".tsv" else ","
            frame = pl.read_csv(path, separator=separator, infer_schema=False)
        elif path.suffix in (".jsonl", ".ndjson"):
            frame = pl.read_ndjson(path)
        else:
            lines = path.read_text(encoding="utf-8").split("\n")
            return [line.strip() for line in lines if line.strip()]
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        reason = str(error).split("\n")[0]
        raise DataError(f"{path} cannot be read: {reason}.") from None
    name = column or frame.columns[0]
    if name not in frame.columns:
        raise UsageError(f"{path} has no column '{name}'. It has: {', '.join(frame.columns)}.")
    keys = frame[name].cast(pl.String, strict=False)
    if keys.null_count():
        row = int(keys.is_null().arg_true()[0]) + 1
        raise DataError(f"{path}, row {row}: {name} is empty. Remove such rows.")
    return keys.to_list()
