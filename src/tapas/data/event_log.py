"""A prepared log on disk: events by user and time, memory-mapped, with their vocabularies."""

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
VOCABULARIES = {"item": "item_keys.parquet", "user": "user_keys.parquet"}
DESCRIPTION = "log.json"
CURE = "Delete the folder and prepare the log again"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EventLog:
    """Who took what when. Events of user u are `offsets[u]:offsets[u + 1]`, at least one.

    They are sorted by time, and by a hash among equal times, where an item stands once. Items
    are ordered by falling count, after those that had ids before; users by key. Made by
    `prepare_log`, never changed.
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
        """An ISO date, with the time of day (UTC) if it has one; the number for other kinds."""
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
        """The log in `folder`; nothing is read but its description."""
        folder = Path(folder)
        file = folder / DESCRIPTION
        if not file.exists():
            raise UsageError(f"{folder} holds no prepared log: {DESCRIPTION} is missing.")
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
        arrays = {name: _mapped(folder / f"{name}.npy", sizes[name]) for name in ARRAYS}
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
    """What `EventLog.open` opens, into an existing folder; the description comes last."""
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", arrays[name])
    for kind, name in VOCABULARIES.items():
        vocabularies[kind].save(folder / name)
    sizes = {name: len(arrays[name]) for name in ARRAYS}
    description = {"format_version": FORMAT_VERSION, "sizes": sizes, "report": report}
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")


def _mapped(file: Path, size: int) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(file, mmap_mode="r")
    except FileNotFoundError:
        raise DataError(f"{file} is missing. {CURE}.") from None
    except (ValueError, OSError, EOFError):
        raise DataError(f"{file} is damaged or cut short. {CURE}.") from None
    if array.shape != (size,):
        raise DataError(f"{file} has shape {array.shape}; expected ({size},). {CURE}.")
    return array
