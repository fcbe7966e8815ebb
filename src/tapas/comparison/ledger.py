"""Results on disk: one JSON line for each run, appended, never rewritten.

A run in the ledger is not run again, so that an experiment can be stopped at any time and
continued. A last line cut short by a crash or a full disk is removed, and its run is repeated; any
other line that cannot be read is an error.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from tapas.atomic_file import make_folder, sync
from tapas.errors import DataError
from tapas.json_toml import parse_json
from tapas.regular_file import MAX_TEXT_BYTES, check_given
from tapas.signals import defer_signals

Result = dict[str, Any]


class Keyed(Protocol):
    """A run of any kind: equal keys mean equal results."""

    def key(self) -> str: ...


Run = TypeVar("Run", bound=Keyed)


def short_key(settings: Mapping[str, Any]) -> str:
    """A hash of `settings`, which must be JSON values."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Ledger:
    """The results of one experiment, by key; those of the files `also` are read only."""

    def __init__(self, path: Path, also: Sequence[Path] = ()):
        self.path = path
        self.results: dict[str, Result] = {}
        for file in (*also, path):
            self._lines: dict[str, int] = {}  # by key, of the last file
            for number, result in _read(file):
                key = result["key"]
                if key in self._lines and result != self.results[key]:
                    raise DataError(
                        f"{file}, line {number}: another result of the run in line "
                        f"{self._lines[key]}. Remove one of the two lines."
                    )
                self._lines[key], self.results[key] = number, result

    def __contains__(self, run: Keyed) -> bool:
        return run.key() in self.results

    def __getitem__(self, run: Keyed) -> Result:
        return self.results[run.key()]

    def damaged(self, key: str, problem: str) -> DataError:
        """The error for a result in which something is wrong."""
        return _damaged(self.path, self._lines.get(key, 0), problem)

    def check_keys(self) -> None:
        """Raise DataError if a result is not under the `short_key` of its run."""
        for key, result in self.results.items():
            if key != short_key(result["run"]):
                raise self.damaged(key, "its key is that of another run")

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """Runs that still have to be done, each once."""
        return list({run.key(): run for run in runs if run not in self}.values())

    def add(self, result: Result) -> None:
        """Append one line and flush it to disk."""
        make_folder(self.path.parent)
        is_new = not self.path.exists()
        with defer_signals(), self.path.open("ab+") as file:
            _end_line(file)
            file.write(json.dumps(result).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            if is_new:
                sync(self.path.parent)
            self.results[result["key"]] = result


def _end_line(file: BinaryIO) -> None:
    """Remove half a line at the end of `file`."""
    file.seek(0)
    content = file.read()
    end = content.rfind(b"\n") + 1
    if _is_json(content[end:]):
        file.write(b"\n")
    else:
        file.truncate(end)


def _is_json(text: bytes) -> bool:
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def _read(path: Path) -> Iterator[tuple[int, Result]]:
    """The results in the file `path`, each with the number of its line."""
    if not path.exists():
        return
    check_given(path)
    with path.open("rb") as file:
        lines = iter(lambda: file.readline(MAX_TEXT_BYTES + 1), b"")
        for number, line in enumerate(lines, start=1):
            if len(line) > MAX_TEXT_BYTES:
                raise _damaged(path, number, f"more than {MAX_TEXT_BYTES // 2**20} MB")
            if not line.strip():
                continue
            try:
                result = parse_json(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return  # cut short by a crash: its run is repeated
                # the error of the parser itself counts lines anew
                raise _damaged(path, number, getattr(error, "msg", "") or str(error)) from None
            if not _is_result(result):
                raise DataError(
                    f"{path}, line {number}: not a result of an experiment (no key and run). "
                    "Move the file away, or remove that line."
                )
            yield number, result


def _damaged(path: Path, line: int, problem: str) -> DataError:
    return DataError(
        f"{path}, line {line} is damaged: {problem}. Remove that line; the same command then does "
        "its run again."
    )


def _is_result(found: object) -> bool:
    if not isinstance(found, dict):
        return False
    return isinstance(found.get("key"), str) and isinstance(found.get("run"), dict)
