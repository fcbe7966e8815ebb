"""The folder of one run: configuration, log, checkpoints and journal.

run/
  run.json        format, versions, threads
  config.toml     the complete configuration, defaults included
  log/            the prepared log: item and user keys, events
  checkpoints/    the newest and the best
  journal.jsonl   one line for each evaluation; tensorboard/ has the same
  restore.json    with servers: the checkpoint from which a restarted server continues
"""

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from tapas.atomic_file import (
    atomic_write,
    is_private,
    is_taken,
    leftovers,
    make_folder,
    private_folder,
    remove_leftovers,
    sync,
    sync_all,
)
from tapas.checkpoints.describe import CHECKPOINTS
from tapas.checkpoints.folder import CheckpointFolder
from tapas.data.event_log import EventLog, copy_log
from tapas.errors import DataError, UsageError
from tapas.escapes import shell_path
from tapas.heads.own_method import NotImportedError
from tapas.training.config import TrainConfig, as_toml, build_config, read_toml
from tapas.version import __version__

FORMAT = 1
RECORD, CONFIG, LOG = "run.json", "config.toml", "log"
UNFINISHED = "run"  # its name in a private folder


@dataclass(frozen=True, slots=True)
class RunFolder:
    """An opened run folder."""

    path: Path
    config: TrainConfig
    log: EventLog
    num_threads: int

    @property
    def checkpoints(self) -> CheckpointFolder:
        return CheckpointFolder(self.path / CHECKPOINTS, keep=self.config.loop.keep)


def check_free(path: Path) -> None:
    """Raise UsageError if no run can be created at `path`, before any work is done."""
    _discard(path)
    if (path / RECORD).exists():
        raise UsageError(
            f"{path} already holds a run. Continue it with --resume, or choose another --out."
        )
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file. Choose another --out.")
    found = list(path.iterdir()) if path.is_dir() else []
    if any(map(is_private, found)):
        raise UsageError(
            f"another command is creating a run in {path}. Wait for it, or choose another --out."
        )
    if found:
        raise UsageError(f"{path} is not empty and holds no run. Choose another --out.")
    try:
        with tempfile.TemporaryFile(dir=next(p for p in (path, *path.parents) if p.exists())):
            pass
    except OSError as error:
        raise _refusal(path, error) from error


def create_run(
    path: Path,
    config: TrainConfig,
    log: EventLog,
    *,
    num_threads: int | None = None,
    fill: Callable[[Path], None] = lambda folder: None,
) -> RunFolder:
    """Create a run folder, complete or not at all; UsageError if another process is faster.

    It is written in a private folder, flushed to disk and renamed. If `path` is an empty folder,
    the parts are moved into it instead, `run.json` last: it may be a mount point or in use.

    `num_threads` is the number of threads for training, by default that of torch now. `fill` is
    called with a folder; the files that it writes there become part of the run.
    """
    try:
        make_folder(path.parent)
        _discard(path)
        exists = path.exists()
        with private_folder(path / UNFINISHED if exists else path) as private:
            unfinished = private / UNFINISHED
            (unfinished / LOG).mkdir(parents=True)
            (unfinished / CONFIG).write_text(as_toml(config), encoding="utf-8")
            copy_log(log.folder, unfinished / LOG)
            record = {
                "format": FORMAT,
                "tapas": __version__,
                "torch": torch.__version__,
                "num_threads": num_threads or torch.get_num_threads(),
            }
            fill(unfinished)
            (unfinished / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            sync_all(unfinished)
            if exists:
                _move_into(path, unfinished)
            else:
                os.rename(unfinished, path)
                sync(path.parent)
    except OSError as error:
        if is_taken(error) and path.is_dir():
            raise UsageError(
                f"another command has just created a run in {path}. Choose another --out."
            ) from error
        raise _refusal(path, error) from error
    return open_run(path)


def write_config(run: RunFolder) -> None:
    """Replace the configuration in the folder by that of `run`."""
    with atomic_write(run.path / CONFIG) as unfinished:
        unfinished.write_text(as_toml(run.config), encoding="utf-8")


@contextmanager
def exclusive(path: Path, record: str = RECORD) -> Iterator[None]:
    """Lock the folder `path` against other training processes; UsageError if it is locked.

    The lock is on the existing file `record` in it and ends with the process.
    """
    descriptor = os.open(path / record, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"another process is training in {path}. Wait until it ends, or stop it."
            ) from None
        remove_leftovers(path)
        remove_leftovers(path.parent, path.name)
        yield
    finally:
        os.close(descriptor)


def open_run(path: Path) -> RunFolder:
    """Open the run in `path`.

    Raises UsageError if there is none or its format is newer, DataError if it is damaged.
    """
    try:
        record = json.loads((path / RECORD).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if path.is_file():
            raise UsageError(
                f"{path} is a file; expected the folder of a run, which `tapas train` creates."
            ) from None
        hint = "" if path.is_dir() else " There is no such folder."
        raise UsageError(
            f"{path} holds no run ({RECORD} is missing).{hint} Create one with "
            f"`tapas train ... --out {shell_path(path)}`."
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path / RECORD} cannot be read: {error}.") from error
    found = record.get("format") if isinstance(record, dict) else None
    if not isinstance(found, int):
        raise DataError(f"{path / RECORD} has no format number: it was not written by tapas.")
    if found > FORMAT:
        raise UsageError(
            f"{path} was written by tapas {record.get('tapas')} (run format {found}); this is "
            f"tapas {__version__}, which reads formats up to {FORMAT}. Upgrade tapas-softmax."
        )
    try:
        config = build_config(read_toml(path / CONFIG))
    except NotImportedError as error:
        raise UsageError(f"{path}: {error}") from None
    except UsageError as error:
        raise UsageError(
            f"the settings of the run in {path} cannot be used: {error} Correct {path / CONFIG}, "
            f"or use the version that wrote it, tapas {record.get('tapas')}."
        ) from error
    try:
        log = EventLog.open(path / LOG)
    except DataError as error:
        raise DataError(f"{error} {log_cure(path)}") from None
    return RunFolder(
        path=path,
        config=config,
        log=log,
        num_threads=int(record.get("num_threads", 1)),
    )


def log_cure(path: Path) -> str:
    """What to do about a damaged log in the run in `path`."""
    return (
        f"Restore {path / LOG} from another copy of the run, or train again from the files of the "
        f"log, which are named in {path / CONFIG}."
    )


def _move_into(path: Path, unfinished: Path) -> None:
    """Move the parts of a run into the empty folder `path`, or none of them.

    Of several processes only one can move its log, as no folder replaces one that has files.
    """
    if not all(map(is_private, path.iterdir())):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    moved: list[str] = []
    try:
        for name in (LOG, *sorted(set(os.listdir(unfinished)) - {LOG, RECORD}), RECORD):
            if name == RECORD:
                sync(path)
            os.rename(unfinished / name, path / name)
            moved.append(name)
        sync(path)
    except BaseException:
        for name in reversed(moved):
            with suppress(OSError):
                os.rename(path / name, unfinished / name)
        raise


def _discard(path: Path) -> None:
    """Remove what a killed process left beside `path` or in it when it created a run there."""
    remove_leftovers(path.parent, path.name)
    for leftover in leftovers(path, UNFINISHED):
        unfinished = leftover / UNFINISHED
        if (unfinished / RECORD).exists() and not (unfinished / LOG).exists():  # it was moving
            for name in (LOG, CHECKPOINTS):
                shutil.rmtree(path / name, ignore_errors=True)
            with suppress(OSError):
                (path / CONFIG).unlink()


def _refusal(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot write into {path}: {error.strerror or error}. Choose another folder with --out."
    )
