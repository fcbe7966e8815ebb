"""The source of a log: files, columns and options, and the key under which it is cached."""

import glob
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tapas.data.log_options import check_separator, check_time_format, parse_condition
from tapas.errors import UsageError
from tapas.escapes import not_an_option
from tapas.regular_file import check_given
from tapas.shapes import check_positive

RARE = ("keep", "drop", "fold")
SPLIT = ("words", "spaces")
TIES = ("basket", "file")
# of commands
FLAGS = ("user", "item", "time", "weight", "text", "group", "min_count", "rare", "time_format",
         "separator")  # fmt: skip
# fields added since; at their defaults they are no part of keys, which stay as they were
LATER = ("weight", "time_format", "separator", "no_header", "where", "ties")
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSource:
    """The files of an event log (user, item, time) or of a text, and how to read them.

    Columns that are None are guessed from common names, and a time column from its values. Without
    one the order of the file is the order of events. Only rows that fulfil all of `where` are
    read. With `text`, each document is a user, each word an item and its
    position the time; rows with the same `group` are one document, in file order.
    """

    files: tuple[str, ...]  # paths or globs
    user: str | None = None
    item: str | None = None
    time: str | None = None
    text: str | None = None
    group: str | None = None
    split: str = "words"  # of text; "words": runs of a-z and 0-9 in lower case; "spaces": unchanged
    min_count: int = 1  # items with fewer events are rare
    rare: str = "keep"  # or "drop", or "fold": all rare items become one class, "(rare)"
    skip_bad_rows: bool = False
    weight: str | None = None  # a number above 0 for each event, such as a rating or a quantity
    time_format: str | None = None  # of strptime; or s, ms, us, ns since the epoch
    separator: str | None = None  # of CSV files; by default found in the first line
    no_header: bool = False  # of CSV files; the columns are then called 1, 2, 3, ...
    where: tuple[str, ...] = ()  # conditions such as "event_type=purchase,cart" or "price>=5"
    ties: str = "basket"  # events of equal time are a "basket", or in the order of the "file"

    def __post_init__(self) -> None:
        if isinstance(self.files, str) or not self.files:
            raise UsageError(
                f"files must be a tuple of at least one path or glob, got {self.files!r}."
            )
        check_positive("min_count", self.min_count)
        if isinstance(self.where, str):
            raise UsageError(f"where must be a tuple of conditions, got {self.where!r}.")
        for condition in self.where:
            parse_condition(condition)
        if self.time_format is not None:
            check_time_format(self.time_format)
        if self.separator is not None:
            check_separator(self.separator)
        known_values = {"rare": (self.rare, RARE), "split": (self.split, SPLIT)}
        known_values["ties"] = (self.ties, TIES)
        for name, (value, known) in known_values.items():
            if value not in known:
                raise UsageError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
        if self.text is not None:
            for name in ("user", "item", "time", "weight"):
                if getattr(self, name) is not None:
                    raise UsageError(
                        f"{name} is {getattr(self, name)!r}, but with text={self.text!r} the "
                        "documents are the users and the words the items. Leave one of them out."
                    )
        elif self.group is not None:
            raise UsageError(
                f"group is {self.group!r}, but only text has groups. Name the column of the text."
            )
        if self.rare != "keep" and self.min_count == 1:
            raise UsageError(
                f"rare is {self.rare!r}, but with min_count 1 no item is rare. Raise min_count."
            )

    def paths(self) -> tuple[Path, ...]:
        """All files that match `files`, sorted; of one file with several names, the first."""
        return tuple(names[0] for names in self._files())

    def repeated(self) -> tuple[Path, ...]:
        """Further names of files that are in `paths` already: links to them."""
        return tuple(name for names in self._files() for name in names[1:])

    def _files(self) -> list[list[Path]]:
        """All names that match `files`, sorted; names of the same file are together."""
        found: set[Path] = set()
        for pattern in self.files:
            is_name = os.path.lexists(pattern)
            matched = [pattern] if is_name else glob.glob(pattern, recursive=True)
            if not matched:
                raise UsageError(f"no file matches '{pattern}'. Check the path.")
            for path in map(Path, matched):
                if os.path.isdir(path):
                    if len(matched) > 1:
                        continue
                    raise UsageError(
                        f"'{path}' is a folder. Name the files in it, for example "
                        f"'{path / '*.parquet'}'."
                    )
                check_given(path)
                found.add(path)
        if not found:
            raise UsageError(
                f"{', '.join(map(repr, self.files))} matches only folders. Name files."
            )
        names: dict[tuple[int, int], list[Path]] = {}
        for path in sorted(found):
            state = path.stat()
            names.setdefault((state.st_dev, state.st_ino), []).append(path)
        return list(names.values())

    def as_key(self) -> dict[str, object]:
        """All fields, but those that were added later only where they are not the default."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self) if field.name in LATER}
        return {n: v for n, v in values.items() if n not in defaults or v != defaults[n]}

    def resolved(self, columns: Mapping[str, Any]) -> "LogSource":
        """The same log for any working directory: absolute paths, and its `columns` by role."""
        files = tuple(glob.escape(str(path.resolve())) for path in self.paths())
        return replace(self, files=files, **columns)

    def cache_key(self, version: object) -> str:
        """A hash of everything that determines the prepared log.

        It covers the options, `version`, and for each file its path, size, modification time, and
        first and last MiB.
        """
        options = [(name, value) for name, value in self.as_key().items() if name != "files"]
        key = hashlib.blake2b(repr((version, options)).encode(), digest_size=16)
        for path in self.paths():
            state = path.stat()
            key.update(repr((str(path.resolve()), state.st_size, state.st_mtime_ns)).encode())
            with path.open("rb") as file:
                key.update(file.read(MIB))
                file.seek(max(0, state.st_size - MIB))
                key.update(file.read(MIB))
        return key.hexdigest()


def command_options(log: Mapping[str, Any]) -> list[str]:
    """The arguments of a command that name such a log: files and options that are not defaults.

    >>> command_options({"files": ["a.csv"], "user": "who", "min_count": 1, "skip_bad_rows": True})
    ['a.csv', '--user', 'who', '--skip-bad-rows']
    """
    words = [not_an_option(file) for file in log["files"]]
    start = LogSource(files=("log",))
    for name in FLAGS:
        default = getattr(start, name)
        if log.get(name, default) != default:
            words += [f"--{name.replace('_', '-')}", str(log[name])]
    for condition in log.get("where", ()):
        words += ["--where", condition]
    for name in ("no_header", "skip_bad_rows"):
        words += [f"--{name.replace('_', '-')}"] if log.get(name) else []
    return words
