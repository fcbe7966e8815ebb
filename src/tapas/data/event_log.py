"""A prepared log on disk: memory-mapped events sorted by user and time, and vocabularies."""

import json
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tapas.data.times import DATETIME
from tapas.data.vocabulary import Vocabulary
from tapas.errors import DataError, UsageError

FORMAT_VERSION = 1
ARRAYS = ("items", "times", "offsets")
WEIGHTS = "weights"  # of logs that have them
VOCABULARIES = {"item": "item_keys.parquet", "user": "user_keys.parquet"}
DESCRIPTION = "log.json"
CURE = "Delete the folder and prepare the log again"
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
    def open(cls, folder: Path) -> Self:
        """Open the log in `folder`, reading only its description; arrays are memory-mapped.

        Raises `UsageError` if `folder` is not a log or of a newer format, `DataError` if damaged.
        """
        folder = Path(folder)
        file = folder / DESCRIPTION
        if not file.exists():
            raise UsageError(f"{folder} is not a prepared log: {DESCRIPTION} is missing.")
        try:
            description = json.loads(file.read_text())
            version, sizes = description["format_version"], description["sizes"]
            report = description["report"]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{file} is damaged. {CURE}.") from None
        if version > FORMAT_VERSION:
            raise UsageError(
                f"{folder} has format version {version}, but this tapas reads up to version "
                f"{FORMAT_VERSION}. Update tapas-softmax, or prepare the log again."
            )
        names = (*ARRAYS, WEIGHTS) if WEIGHTS in sizes else ARRAYS
        arrays = {name: _mapped(folder / f"{name}.npy", sizes[name]) for name in names}
        for name in VOCABULARIES.values():
            if not (folder / name).exists():
                raise DataError(f"{folder / name} is missing. {CURE}.")
        return cls(folder, arrays, report)


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
    description = {"format_version": FORMAT_VERSION, "sizes": sizes, "report": report}
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")


def _mapped(file: Path, size: int) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(file, mmap_mode="r")
    except FileNotFoundError:
        raise DataError(f"{file} is missing. {CURE}.") from None
    except (ValueError, OSError, EOFError):
        raise DataError(f"{file} is damaged or truncated. {CURE}.") from None
    if array.shape != (size,):
        raise DataError(f"{file} has shape {array.shape}; expected ({size},). {CURE}.")
    return array
