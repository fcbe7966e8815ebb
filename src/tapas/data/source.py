"""What decides a prepared log: files, columns and options. Equal sources have equal keys."""

import glob
import hashlib
from dataclasses import dataclass, fields
from pathlib import Path

from tapas.errors import UsageError
from tapas.shapes import check_positive

RARE = ("keep", "drop", "fold")
SPLIT = ("words", "spaces")
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSource:
    """Where a log of "who took what when" is, or a text, and how to read it.

    Column names that are None are guessed from common ones. A log without any time column is
    taken in file order. With `text`, every document is a user, every word an item and its
    place the time; rows that share a `group` are one document, in file order.
    """

    files: tuple[str, ...]  # paths or globs
    user: str | None = None
    item: str | None = None
    time: str | None = None
    text: str | None = None
    group: str | None = None
    split: str = "words"  # "words": runs of a-z and 0-9 in lower case; "spaces": as written
    min_count: int = 1  # items seen less often are rare
    rare: str = "keep"  # or "drop", or "fold": all rare items become one class, "(rare)"
    skip_bad_rows: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.files, str) or not self.files:
            raise UsageError(
                f"files must be a tuple of at least one path or glob, got {self.files!r}."
            )
        check_positive("min_count", self.min_count)
        for name, value, known in (("rare", self.rare, RARE), ("split", self.split, SPLIT)):
            if value not in known:
                raise UsageError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
        if self.text is not None:
            for name in ("user", "item", "time"):
                if getattr(self, name) is not None:
                    raise UsageError(
                        f"{name} is {getattr(self, name)!r}, but with text={self.text!r} the "
                        "documents are the users and the words the items. Give one or the other."
                    )
        elif self.group is not None:
            raise UsageError(
                f"group is {self.group!r}, but groups belong to a text. Name its column as text."
            )
        if self.rare != "keep" and self.min_count == 1:
            raise UsageError(
                f"rare is {self.rare!r}, but with min_count 1 no item is rare. Raise min_count."
            )

    def paths(self) -> tuple[Path, ...]:
        """Every file that the patterns name, once each, sorted."""
        found: set[Path] = set()
        for pattern in self.files:
            matched = [pattern] if Path(pattern).exists() else glob.glob(pattern, recursive=True)
            if not matched:
                raise UsageError(f"no file matches '{pattern}'. Check the path.")
            for path in map(Path, matched):
                if path.is_dir():
                    if len(matched) > 1:
                        continue
                    raise UsageError(
                        f"'{path}' is a folder. Name the files in it, for example "
                        f"'{path / '*.parquet'}'."
                    )
                found.add(path)
        if not found:
            raise UsageError(f"{', '.join(map(repr, self.files))} names only folders, no file.")
        return tuple(sorted(found))

    def content_key(self, version: object) -> str:
        """A name for what `prepare_log` makes of this source as the files are now.

        Covers the options, `version`, and each file's path, size, time of change, first and
        last MiB.
        """
        options = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name != "files"]
        key = hashlib.blake2b(repr((version, options)).encode(), digest_size=16)
        for path in self.paths():
            state = path.stat()
            key.update(repr((str(path.resolve()), state.st_size, state.st_mtime_ns)).encode())
            with path.open("rb") as file:
                key.update(file.read(MIB))
                file.seek(max(0, state.st_size - MIB))
                key.update(file.read(MIB))
        return key.hexdigest()
