"""Checking all files of a run against their checksums, as `tapas verify` does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from os.path import lexists
from pathlib import Path

from tapas.atomic_file import is_private
from tapas.checkpoints.describe import CHECKPOINTS
from tapas.checkpoints.files import STATE, checkpoint_files, complete_in, read_record
from tapas.checkpoints.folder import CheckpointFolder
from tapas.checksums import Checksum, check_text, find_damage, has_checksum
from tapas.data.event_log import DESCRIPTION, EventLog, log_checksums, read_description
from tapas.errors import DataError, TapasError
from tapas.regular_file import read_stored
from tapas.retrieval.export_folder import (
    EXPORT_RECORD,
    export_checksums,
    is_export,
    read_export_record,
)
from tapas.training.journal import JOURNAL, check_journal
from tapas.training.run_folder import (
    CONFIG,
    LOG,
    RECORD,
    REPORT,
    RESTORE,
    best_step,
    log_cure,
    read_config,
    read_restore_point,
    read_run_record,
)
from tapas.training.search_page import SEARCH_PAGE

EARLIER = "no checksum, as an earlier version wrote it"
TENSORBOARD = "tensorboard"
KNOWN = {RECORD, CONFIG, LOG, CHECKPOINTS, JOURNAL, RESTORE, TENSORBOARD, REPORT, SEARCH_PAGE}


@dataclass(slots=True)
class Part:
    """A part of a run, and what is wrong with it."""

    name: str
    num_bytes: int = 0
    problems: list[str] = field(default_factory=list)  # sentences
    unchecked: str = ""  # why it was not checked, or not all of it
    step: int | None = None  # of a checkpoint
    best: bool = False  # when it was saved

    @property
    def verdict(self) -> str:
        if self.problems:
            return "damaged"
        return "not checked" if self.unchecked else "whole"

    @contextmanager
    def noting(self) -> Iterator[None]:
        """An error inside the block becomes one of the problems."""
        try:
            yield
        except TapasError as error:
            self.problems.append(str(error))


def check_run(
    path: Path, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Part]:
    """Read all of the run in `path`, an export or a prepared log, and compare it with checksums.

    `on_progress(done, total)` is called with numbers of bytes. Raises UsageError if none is there.
    """
    files: dict[Path, tuple[Part, Checksum]] = {}
    if (path / DESCRIPTION).exists() and not (path / RECORD).exists():
        parts = [_log(path, path, {}, files)]
    elif is_export(path):
        parts = _export(path, files)
    else:
        parts = _run(path, files)
    expected = {file: checksum for file, (_, checksum) in files.items()}
    total, done = sum(each["bytes"] for each in expected.values()), 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        on_progress(done, total)

    for file, problem in find_damage(expected, everything=True, on_bytes=advance).items():
        files[file][0].problems.append(problem)
    for part in parts:
        if part.problems and part.name == LOG:
            part.problems[-1] += f" {log_cure(path)}"
    if was_best := [part for part in parts if part.best]:
        was_best[-1].name += ", the best"
    _find_best(path, parts)
    _advise_checkpoints(path, [part for part in parts if part.step is not None])
    return parts


def _run(path: Path, files: dict[Path, tuple[Part, Checksum]]) -> list[Part]:
    record_part, config = _sized(RECORD, path / RECORD), _sized(CONFIG, path / CONFIG)
    if not (path / RECORD).exists():
        read_run_record(path)  # raises
    id, listed = "", {}
    try:
        record = read_run_record(path)
        id, listed = record.get("id", ""), record.get("files", {})
        if not has_checksum(path / RECORD):
            record_part.unchecked = EARLIER
        read_config(path, id)
        if not check_text(read_stored(path / CONFIG), id):
            config.unchecked = "no checksum, as an earlier version wrote it, or by a change"
    except TapasError as error:
        (config if str(path / CONFIG) in str(error) else record_part).problems.append(str(error))
    parts = [record_part, config, _log(path / LOG, path, listed, files)]
    steps = complete_in(path / CHECKPOINTS)
    parts += [_checkpoint(step, steps[step], files) for step in sorted(steps)]
    if lexists(path / JOURNAL):
        parts.append(part := _sized(JOURNAL, path / JOURNAL))
        with part.noting():
            part.unchecked = check_journal(path / JOURNAL)
    if lexists(path / RESTORE):
        parts.append(part := _sized(RESTORE, path / RESTORE))
        try:
            read_restore_point(path / RESTORE)
        except TapasError as error:
            part.problems.append(f"{error} The next `tapas train --resume` writes it again.")
    others = [file for file in path.iterdir() if file.name not in KNOWN]
    others += [
        file
        for folder in (path / CHECKPOINTS, path / LOG, *steps.values())
        for file in _entries(folder)
        if file not in files
        and file not in steps.values()
        and file.name not in (DESCRIPTION, STATE)
    ]
    if not any(part.problems for part in parts):  # or files of a damaged part are unknown
        parts += [_other(file, path) for file in sorted(others)]
    return parts


def _export(path: Path, files: dict[Path, tuple[Part, Checksum]]) -> list[Part]:
    parts = {file: _sized(file.name, file) for file in _entries(path)}
    checksums = None
    with parts[path / EXPORT_RECORD].noting():
        checksums = export_checksums(path, read_export_record(path))
    for file, checksum in (checksums or {}).items():
        files[file] = parts.setdefault(file, Part(file.name)), checksum
    for file, part in parts.items():
        if file.name != EXPORT_RECORD and file not in files:
            part.unchecked = EARLIER if checksums is None else "no part of the export"
    return list(parts.values())


def _log(
    folder: Path,
    run: Path,
    listed: dict[str, Checksum],
    files: dict[Path, tuple[Part, Checksum]],
) -> Part:
    part = _sized(LOG, *_entries(folder))
    with part.noting():
        checksums = log_checksums(folder, read_description(folder))
        files |= {run / name: (part, checksum) for name, checksum in listed.items()}
        if checksums is None:
            part.unchecked = EARLIER
            EventLog.open(folder)
        else:
            files |= {file: (part, checksum) for file, checksum in checksums.items()}
    return part


def _checkpoint(step: int, folder: Path, files: dict[Path, tuple[Part, Checksum]]) -> Part:
    part = _sized(f"step {step:,}", *_entries(folder))
    part.step = step
    with part.noting():
        record = read_record(folder)
        part.best = record["best"]
        if not has_checksum(folder / STATE):
            part.unchecked = f"{STATE} has {EARLIER}"
        listed = checkpoint_files(folder, record)
        files |= {file: (part, checksum) for file, checksum in listed.items()}
    return part


def _find_best(path: Path, parts: list[Part]) -> None:
    """Add the best checkpoint if the newest one names it and it is not there."""
    try:
        if (path / RECORD).exists() and not any(part.problems for part in parts):
            best_step(CheckpointFolder(path / CHECKPOINTS))
    except DataError as error:
        parts.append(Part("the best", problems=[str(error)]))


def _advise_checkpoints(path: Path, parts: list[Part]) -> None:
    """Say what to use instead of damaged checkpoints."""
    steps = [part.step for part in parts if part.step is not None and not part.problems]
    for part in parts:
        if part.problems and steps:
            part.problems[-1] += (
                f" Step {max(steps)} is whole: use it with --step {max(steps)}, or train on from "
                f"it with `tapas train --resume {path} --step {max(steps)}`."
            )
        elif part.problems:
            part.problems[-1] += (
                " No other checkpoint is whole: restore one from another copy of the run, or "
                "train again."
            )


def _other(file: Path, run: Path) -> Part:
    part = _sized(str(file.relative_to(run)), file)
    part.unchecked = "no part of the run"
    if is_private(file):
        part.unchecked = "left by a killed process; `tapas train --resume` removes it"
    return part


def _sized(name: str, *files: Path) -> Part:
    return Part(name, sum(file.stat().st_size for file in files if file.is_file()))


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
