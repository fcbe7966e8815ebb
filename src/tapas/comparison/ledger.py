"""Results on disk: one JSON line for each run, appended, never rewritten.

A run in the ledger is not run again, so that an experiment can be stopped at any time and
continued. A line cut short by a crash or a full disk is skipped, and its run is repeated.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tapas.atomic_file import make_folder, sync
from tapas.errors import DataError
from tapas.json_toml import parse_json
from tapas.regular_file import check_given
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
        self.results: dict[str, Result] = {
            result["key"]: result for file in (*also, path) for result in _read(file)
        }

    def __contains__(self, run: Keyed) -> bool:
        return run.key() in self.results

    def __getitem__(self, run: Keyed) -> Result:
        return self.results[run.key()]

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """Runs that still have to be done, each once."""
        return list({run.key(): run for run in runs if run not in self}.values())

    def add(self, result: Result) -> None:
        """Append one line and flush it to disk."""
        make_folder(self.path.parent)
        is_new = not self.path.exists()
        complete = is_new or self.path.read_bytes()[-1:] in (b"", b"\n")
        with defer_signals(), self.path.open("a") as file:
            file.write(("" if complete else "\n") + json.dumps(result) + "\n")
            file.flush()
            os.fsync(file.fileno())
            if is_new:
                sync(self.path.parent)
            self.results[result["key"]] = result


def _read(path: Path) -> Iterator[Result]:
    if not path.exists():
        return
    check_given(path)
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            result = parse_json(line)
        except ValueError:
            continue  # cut short by a crash: its run is repeated
        if not _is_result(result):
            raise DataError(
                f"{path}, line {number}: not a result of an experiment (no key and run). "
                "Move the file away, or remove that line."
            )
        yield result


def _is_result(found: object) -> bool:
    if not isinstance(found, dict):
        return False
    return isinstance(found.get("key"), str) and isinstance(found.get("run"), dict)
