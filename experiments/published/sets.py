"""The sets: where their public files are, and how they become logs.

The files are those of three repositories, cloned side by side into one folder:

    git clone https://github.com/salesforce/ICLRec
    git clone https://github.com/FeiSun/BERT4Rec
    git clone https://github.com/CCIIPLab/GCE-GNN
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars

from experiments.trained_runs import Tables
from tapas.atomic_file import atomic_write, make_folder
from tapas.data.local_files import literal
from tapas.errors import DataError, UsageError, choice
from tapas.training.config import PROTOCOLS

Sessions = list[list[int]]
SESSION_SETTINGS: Tables = {
    "split": {"kind": "group", "validation": 0.05, "test": 0.0},
    "head": {"next_items": 1},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedSet:
    """A set of sequences whose next item is to be found among all items."""

    name: str
    title: str
    file: str  # below the folder of the repositories
    read: Callable[[Path], Sessions]
    test_file: str | None = None  # of pairs of a history and its next item, if it has its own
    few_items: bool = False  # so that `tapas train` takes a full softmax by itself
    tuned: bool = False  # whether settings were chosen with its validation users in sight

    @property
    def settings(self) -> Tables:
        """What `tapas train` is told: how the tables of this set judge."""
        return SESSION_SETTINGS if self.test_file else PROTOCOLS["leave-one-out"]

    def log(self, data: Path, cache: Path) -> Path:
        """The log as Parquet with columns user and item, made from the file the first time."""
        out = cache / f"{self.name}.parquet"
        if out.exists():
            return out
        sessions = self.read(self._find(data, self.file))
        make_folder(cache)
        with atomic_write(out) as file:
            as_frame(sessions).write_parquet(literal(file))
        return out

    def test_points(self, data: Path) -> tuple[Sessions, list[int]]:
        """Histories and the next item of each, of a set with a test file."""
        if self.test_file is None:
            raise ValueError(f"{self.name} has no test file")
        histories, targets = read_pickle(self._find(data, self.test_file))
        return histories, targets

    def check_test_points(self, data: Path) -> None:
        """Raise DataError if a test item, or all of a history, is not in the training sessions."""
        known = {item for session in self.read(self._find(data, self.file)) for item in session}
        for number, (history, item) in enumerate(zip(*self.test_points(data), strict=True), 1):
            if item not in known or known.isdisjoint(history):
                raise DataError(
                    f"test point {number} of {self.name} has items that are not in {self.file}. "
                    "Take both files from one commit of their repository."
                )

    def _find(self, data: Path, file: str) -> Path:
        path = data / file
        if not path.is_file():
            repository = file.partition("/")[0]
            raise UsageError(
                f"{self.name} needs the file {path}, which is not there. Clone {repository} into "
                f"{data} (see experiments/published/sets.py), name another folder with --data, or "
                "leave the set out with --sets."
            )
        return path


def read_lines(path: Path) -> Sessions:
    """A line for each user: its number, then the items in order."""
    return [items for _, *items in _numbers(path) if items]


def read_pairs(path: Path) -> Sessions:
    """A line for each event, user and item; the events of a user are in order."""
    users: dict[int, list[int]] = {}
    for user, item in _numbers(path):
        users.setdefault(user, []).append(item)
    return list(users.values())


def read_sessions(path: Path) -> Sessions:
    """A pickled list of sessions, each a list of items."""
    sessions: Sessions = read_pickle(path)
    return [session for session in sessions if session]


def read_pickle(path: Path) -> Any:
    """Lists and numbers that were pickled; anything else is refused before it is made."""
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file).load()
    except (pickle.UnpicklingError, EOFError, ValueError) as error:
        raise DataError(f"{path} is not a pickle of lists of numbers: {error}.") from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _numbers(path: Path) -> Iterator[list[int]]:
    with path.open() as file:
        for number, line in enumerate(file, start=1):
            try:
                yield [int(word) for word in line.split()]
            except ValueError:
                raise DataError(f"{path}, line {number}: {line[:60]!r} is not numbers.") from None


def as_frame(sessions: Sessions) -> polars.DataFrame:
    """A row for each event: the number of its session, and its item."""
    frame = polars.DataFrame({"user": range(len(sessions)), "item": sessions})
    return frame.explode("item").cast(polars.Int64)


SETS = {
    found.name: found
    for found in (
        PublishedSet(
            name="beauty", title="Amazon Beauty", file="ICLRec/data/Beauty.txt",
            read=read_lines, few_items=True, tuned=True,
        ),
        PublishedSet(
            name="sports", title="Amazon Sports and Outdoors",
            file="ICLRec/data/Sports_and_Outdoors.txt", read=read_lines, few_items=True,
        ),
        PublishedSet(
            name="toys", title="Amazon Toys and Games",
            file="ICLRec/data/Toys_and_Games.txt", read=read_lines, few_items=True,
        ),
        PublishedSet(name="yelp", title="Yelp", file="ICLRec/data/Yelp.txt", read=read_lines),
        PublishedSet(
            name="bert4rec-beauty", title="Amazon Beauty of BERT4Rec",
            file="BERT4Rec/data/beauty.txt", read=read_pairs, tuned=True,
        ),
        PublishedSet(
            name="tmall", title="Tmall sessions", file="GCE-GNN/datasets/Tmall/all_train_seq.txt",
            read=read_sessions, test_file="GCE-GNN/datasets/Tmall/test.txt",
        ),
        PublishedSet(
            name="nowplaying", title="Nowplaying sessions",
            file="GCE-GNN/datasets/Nowplaying/all_train_seq.txt",
            read=read_sessions, test_file="GCE-GNN/datasets/Nowplaying/test.txt",
        ),
    )
}  # fmt: skip


def find_sets(names: str) -> list[PublishedSet]:
    """The sets whose names, separated by commas, are in `names`."""
    return [choice("set", name.strip(), SETS) for name in names.split(",")]
