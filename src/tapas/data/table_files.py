"""Tables written to files in the format of their suffix, at once or as their rows come."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from tapas.atomic_file import atomic_write
from tapas.data.local_files import literal
from tapas.errors import UsageError
from tapas.signals import defer_signals

SUFFIXES = (".parquet", ".jsonl", ".csv")
ROWS_PER_PART = 1 << 19


def check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path} must end in one of {', '.join(SUFFIXES)}.")


def write_frame(path: Path, columns: Mapping[str, Sequence[Any] | Any]) -> None:
    """Write `columns` to `path` as Parquet, JSON lines or CSV; a failure leaves no file."""
    check_suffix(path)
    frame = pl.DataFrame({name: _column(values) for name, values in columns.items()})
    with atomic_write(path) as unfinished, _polars_errors():
        if path.suffix == ".parquet":
            frame.write_parquet(literal(unfinished))
        elif path.suffix == ".jsonl":
            frame.write_ndjson(literal(unfinished))
        else:
            frame.write_csv(literal(unfinished))


def _column(values: Any) -> Any:
    """`values`, converted to text if types are mixed, such as integer keys and "(rare)"."""
    mixed = isinstance(values, list) and len({type(value) for value in values}) > 1
    return [str(value) for value in values] if mixed else values


def check_new(path: Path, force: bool) -> None:
    """Refuse to write a table over an existing file, unless `force`, or where no folder is."""
    check_suffix(path)
    if path.exists() and not force:
        raise UsageError(f"{path} exists. Choose another --out or add --force.")
    if not path.parent.is_dir():  # said before a model is loaded
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}. Make it first.")


@contextmanager
def table_writer(path: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yields the function that adds rows to the table in `path`: columns {name: values}.

    The file appears when the block ends; if the block raises, no file is left and an old one is
    unchanged. Memory does not grow with the number of rows: Parquet is written in parts, which
    are joined in the end.
    """
    check_suffix(path)
    held: list[pl.DataFrame] = []
    num_parts = 0
    with atomic_write(path) as unfinished:
        parts = unfinished.with_suffix(".parts")

        def flush() -> None:
            nonlocal num_parts
            frame = pl.concat(held)
            held.clear()
            with defer_signals(), _polars_errors():
                if path.suffix == ".parquet":
                    parts.mkdir(exist_ok=True)
                    part = parts / f"{num_parts:09}.parquet"
                    frame.write_parquet(literal(part), compression="lz4")
                else:
                    with unfinished.open("ab") as opened:
                        if path.suffix == ".csv":
                            frame.write_csv(opened, include_header=num_parts == 0)
                        else:
                            frame.write_ndjson(opened)
            num_parts += 1

        def write(columns: Mapping[str, Any]) -> None:
            held.append(pl.DataFrame(dict(columns)))
            if sum(frame.height for frame in held) >= ROWS_PER_PART:
                flush()

        yield write
        if held:
            flush()
        if path.suffix == ".parquet":
            with defer_signals(), _polars_errors():
                frames = pl.scan_parquet([*map(literal, sorted(parts.iterdir()))], glob=False)
                frames.sink_parquet(literal(unfinished))


@contextmanager
def _polars_errors() -> Iterator[None]:
    """Turn errors of polars, such as a full disk, into OSError, which `atomic_write` reports."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        raise OSError(str(error).split("\n")[0]) from error
