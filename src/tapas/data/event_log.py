"""A prepared log on disk: memory-mapped events sorted by user and time, and vocabularies."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tapas.checksums import (
    Checksum,
    check_files,
    checksum,
    copy_with_checksum,
    differs,
    is_checksum,
    not_as_saved,
    read_json,
    write_json,
)
from tapas.data.times import DATETIME
from tapas.data.vocabulary import Vocabulary, num_keys
from tapas.errors import DataError, UsageError
from tapas.regular_file import check_stored
from tapas.version import check_format

FORMAT_VERSION = 1
ARRAYS = ("items", "times", "offsets")
WEIGHTS = "weights"  # of logs that have them
DTYPES = {  # by array
    "items": (np.dtype(np.int32), np.dtype(np.int64)),
    "times": (np.dtype(np.int64),),
    "offsets": (np.dtype(np.int64),),
    WEIGHTS: (np.dtype(np.float32),),
}
VOCABULARIES = {"item": "item_keys.parquet", "user": "user_keys.parquet"}
DESCRIPTION = "log.json"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EventLog:
    """Events (user, item, time). Those of user u are `offsets[u]:offsets[u + 1]`, at least one.

    A user's events are sorted by time, and by a hash among equal times (a basket), where each item
    occurs once. Item ids are ordered by decreasing count, after the items of an earlier log if
    there was one; user ids are ordered by key. Created by `prepare_log`, never modified.
    """

    def __init__(
        self,
        folder: Path,
        arrays: dict[str, NDArray[Any]],
        report: dict[str, object],
    ):
        self.folder = folder
        self.items = arrays["items"]  # (N,) int32, or int64 if C >= 2^31
        self.times = arrays["times"]  # (N,) int64
        self.offsets = arrays["offsets"]  # (U + 1,) int64
        self.weights = arrays.get(WEIGHTS)  # (N,) float32 above 0, or None
        self.report = report

    @cached_property
    def item_keys(self) -> Vocabulary:
        return Vocabulary.load(self.folder / VOCABULARIES["item"], kind="item")

    @cached_property
    def user_keys(self) -> Vocabulary:
        return Vocabulary.load(self.folder / VOCABULARIES["user"], kind="user")

    def check_values(self) -> None:
        """Raise DataError unless offsets and items are in range: the files may be a stranger's.

        Reads all events, so that this is left to whoever reads them next anyway.
        """
        lengths = np.diff(self.offsets)
        whole = len(lengths) and self.offsets[0] == 0 and lengths.min() > 0
        if not whole or self.offsets[-1] != self.num_events or len(self.times) != self.num_events:
            raise DataError(
                f"{self.folder / 'offsets.npy'} is damaged: expected rising numbers from 0 to "
                f"{self.num_events}, the number of events."
            )
        low, high = int(self.items.min()), int(self.items.max())
        if low < 0 or high >= self.num_items:
            raise DataError(
                f"{self.folder / 'items.npy'} is damaged: it has the item "
                f"{low if low < 0 else high}; expected 0 to {self.num_items - 1}."
            )

    @property
    def num_events(self) -> int:
        return len(self.items)

    @property
    def num_users(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_items(self) -> int:
        return int(str(self.report["items"]))

    def format_time(self, time: int) -> str:
        """`time` as an ISO date, with the time of day (UTC) unless midnight, or as a number."""
        if self.report["time_kind"] != DATETIME:
            return str(int(time))
        try:
            moment = EPOCH + timedelta(microseconds=int(time))
        except OverflowError:  # before the year 1 or after 9999
            return str(int(time))
        if moment.time() == EPOCH.time():
            return moment.date().isoformat()
        return moment.replace(tzinfo=None).isoformat(sep=" ")

    def __repr__(self) -> str:
        return (
            f"EventLog({self.num_events:,} events, {self.num_users:,} users, "
            f"{self.num_items:,} items)"
        )

    @classmethod
    def open(cls, folder: Path, *, everything: bool = False) -> Self:
        """Open the log in `folder` and check its files; arrays are memory-mapped.

        Of files above 64 MB only some blocks are checked, unless `everything` is to be. Raises
        `UsageError` if `folder` is not a log or of a newer format, `DataError` if it is damaged.
        """
        folder = Path(folder)
        description = read_description(folder)
        check_files(log_checksums(folder, description) or {}, everything=everything)
        sizes = description["sizes"]
        arrays = {name: _mapped(folder / f"{name}.npy", size) for name, size in sizes.items()}
        counts = {"item": description["report"]["items"], "user": sizes["offsets"] - 1}
        for kind, name in VOCABULARIES.items():
            if (found := num_keys(folder / name)) != counts[kind]:
                raise DataError(
                    f"{folder / name} has {found:,} keys; expected {counts[kind]:,}, as "
                    f"{DESCRIPTION} says."
                )
        return cls(folder, arrays, description["report"])


def write_log(
    folder: Path,
    arrays: dict[str, NDArray[Any]],
    vocabularies: dict[str, Vocabulary],
    report: dict[str, object],
) -> None:
    """Write a log that `EventLog.open` reads into an existing folder, the description last."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    for kind, name in VOCABULARIES.items():
        vocabularies[kind].save(folder / name)
    sizes = {name: len(array) for name, array in arrays.items()}
    files = {name: checksum(folder / name) for name in _file_names(sizes)}
    _write_description(folder, {"sizes": sizes, "report": report, "files": files})


def copy_log(source: Path, folder: Path) -> None:
    """Copy the prepared log in `source` into the existing `folder`, and check all of it.

    The copy also has checksums if `source`, of an earlier version, has none.
    """
    description = read_description(source)
    expected, files = description.get("files", {}), {}
    for name in _file_names(description["sizes"]):
        files[name] = copy_with_checksum(source / name, folder / name)
        if files[name] != expected.get(name, files[name]):
            raise DataError(
                f"{differs(source / name)} Remove it with `tapas cache --empty`; the next command "
                "prepares the log again."
            )
    _write_description(folder, {**description, "files": files})


def read_description(folder: Path) -> dict[str, Any]:
    """The content of log.json; raises as `EventLog.open` does."""
    file = folder / DESCRIPTION
    if not file.exists():
        raise UsageError(f"{folder} is not a prepared log: {DESCRIPTION} is missing.")
    description = read_json(file)
    check_format(file, description, "log", FORMAT_VERSION)
    if not _is_description(description):
        raise not_as_saved(file)
    return description


def log_checksums(folder: Path, description: dict[str, Any]) -> dict[Path, Checksum] | None:
    """Checksums of the files of the log in `folder`; None if an earlier version wrote it."""
    files = description.get("files")
    return None if files is None else {folder / name: files[name] for name in files}


def _is_description(found: dict[str, Any]) -> bool:
    """Whether `found` has everything that is read later."""
    sizes, report, files = found.get("sizes"), found.get("report"), found.get("files")
    if not isinstance(sizes, dict) or {*sizes} - {WEIGHTS} != {*ARRAYS}:
        return False
    if any(type(size) is not int for size in sizes.values()):
        return False
    if not isinstance(report, dict) or type(report.get("items")) is not int:
        return False
    if files is None:  # an earlier version has none
        return True
    return (
        isinstance(files, dict)
        and {*files} == {*_file_names(sizes)}
        and all(map(is_checksum, files.values()))
    )


def _file_names(sizes: Iterable[str]) -> list[str]:
    return [*(f"{name}.npy" for name in sizes), *VOCABULARIES.values()]


def _write_description(folder: Path, description: dict[str, Any]) -> None:
    write_json(folder / DESCRIPTION, {"format_version": FORMAT_VERSION, **description})


def _mapped(file: Path, size: int) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(check_stored(file), mode="r")
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}.") from None
    except Exception:  # whatever numpy raises for a damaged header
        raise DataError(f"{file} is damaged or truncated.") from None
    if array.shape != (size,):
        raise DataError(f"{file} has shape {array.shape}; expected ({size},).")
    if array.dtype not in DTYPES[file.stem]:
        expected = " or ".join(map(str, DTYPES[file.stem]))
        raise DataError(f"{file} has dtype {array.dtype}; expected {expected}.")
    return array
