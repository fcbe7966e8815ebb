"""The folder of one run: configuration, log, checkpoints and journal.

run/
  run.json        format, versions, threads
  config.toml     the complete configuration, defaults included
  log/            the prepared log: item and user keys, events
  checkpoints/    the newest and the best
  journal.jsonl   one line for each evaluation; tensorboard/ has the same
  report.html     all of that to look at; search.html: what --tune tried
  restore.json    with servers: the checkpoint from which a restarted server continues

Everything but tensorboard/ and pages can be checked: run.json, config.toml, state.json of a
checkpoint and each line of the journal carry their own checksum; run.json has that of log.json,
log.json those of the other files of the log, state.json those of its checkpoint.
"""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

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
from tapas.checkpoints.files import read_record
from tapas.checkpoints.folder import CheckpointFolder
from tapas.checksums import (
    check_files,
    check_text,
    checksum,
    differs,
    is_checksum,
    not_as_saved,
    read_json,
    text_with_checksum,
    write_json,
)
from tapas.data.event_log import DESCRIPTION, EventLog, copy_log
from tapas.errors import DataError, UsageError
from tapas.escapes import shell_path
from tapas.heads.own_method import NotImportedError
from tapas.regular_file import read_stored
from tapas.threads import MOST_THREADS
from tapas.training.config import TrainConfig, as_toml, build_config, read_toml
from tapas.training.journal import JOURNAL
from tapas.version import __version__, check_format

FORMAT = 1
RECORD, CONFIG, LOG = "run.json", "config.toml", "log"
RESTORE = "restore.json"
REPORT = "report.html"
LOG_RECORD = f"{LOG}/{DESCRIPTION}"
UNFINISHED = "run"  # its name in a private folder


@dataclass(frozen=True, slots=True)
class RunFolder:
    """An opened run folder."""

    path: Path
    config: TrainConfig
    log: EventLog
    num_threads: int
    id: str = ""  # of the log and the first settings; runs of earlier versions have none

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
            copy_log(log.folder, unfinished / LOG)
            log_record = checksum(unfinished / LOG_RECORD)
            id = blake2b((log_record["blake2b"] + as_toml(config)).encode(), digest_size=16)
            _write_config(unfinished / CONFIG, config, id.hexdigest())
            record = {
                "format": FORMAT,
                "tapas": __version__,
                "torch": torch.__version__,
                "num_threads": num_threads or torch.get_num_threads(),
                "id": id.hexdigest(),
                "files": {LOG_RECORD: log_record},
            }
            fill(unfinished)
            write_json(unfinished / RECORD, record)
            sync_all(unfinished)
            if exists:
                _move_into(path, unfinished)
            else:
                os.rename(unfinished, path)
                sync(path.parent)
    except OSError as error:
        if is_taken(error) and path.is_dir():
            created = any(map(is_private, path.iterdir())) or (path / RECORD).exists()
            raise UsageError(
                f"another command has just created a run in {path}. Choose another --out."
                if created
                else f"files came into {path} after this command began. Choose another --out."
            ) from error
        raise _refusal(path, error) from error
    return open_run(path)


def write_config(run: RunFolder) -> None:
    """Replace the configuration in the folder by that of `run`."""
    with atomic_write(run.path / CONFIG) as unfinished:
        _write_config(unfinished, run.config, run.id)


def _write_config(file: Path, config: TrainConfig, id: str) -> None:
    """Write config.toml with a checksum for the run `id`, so that no other run's is taken for it.

    The checksum is in the file itself: it is replaced in one step when a run is resumed.
    """
    file.write_text(text_with_checksum(as_toml(config), id), encoding="utf-8")


@contextmanager
def exclusive(path: Path, record: str = RECORD) -> Iterator[None]:
    """Lock the folder `path` against other training processes; UsageError if it is locked.

    The lock is on the existing file `record` in it and ends with the process.
    """
    _check_owner(path)
    try:
        descriptor = os.open(path / record, os.O_RDWR)  # NFS locks only what is open for writing
    except OSError as error:
        raise UsageError(
            f"cannot write {path / record}: {error.strerror}. Copy {path} to where you may write, "
            "and continue there."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process is training in {path}. Wait until it ends, or stop it."
            ) from None
        except OSError as error:
            raise UsageError(
                f"cannot lock {path / record}: {error.strerror}. Train in a folder whose file "
                "system has locks, such as one on a local disk."
            ) from None
        remove_leftovers(path)
        remove_leftovers(path.parent, path.name)
        yield
    finally:
        os.close(descriptor)


def _check_owner(path: Path) -> None:
    """Raise UsageError if checkpoints/ is a link into another run, whose would be removed."""
    folder = path / CHECKPOINTS
    owner = folder.resolve().parent
    if folder.is_symlink() and os.path.lexists(owner / RECORD) and owner != path.resolve():
        raise UsageError(
            f"{folder} is a link to the checkpoints of another run, {owner}, which training would "
            "replace. Copy the run with `cp -rL`, and continue the copy."
        )


def open_run(path: Path, *, everything: bool = False) -> RunFolder:
    """Open the run in `path` and check it, except its checkpoints.

    Of files above 64 MB only some blocks are checked, unless `everything` is to be. Raises
    UsageError if there is no run or its format is newer, DataError if it is damaged.
    """
    record = read_run_record(path)
    try:
        config = build_config(read_config(path, record.get("id", "")))
    except NotImportedError as error:
        raise UsageError(f"{path}: {error}") from None
    except UsageError as error:
        raise UsageError(
            f"the settings of the run in {path} cannot be used: {error} Correct {path / CONFIG}, "
            f"or use the version that wrote it, tapas {record.get('tapas')}."
        ) from error
    try:
        check_files({path / name: each for name, each in record.get("files", {}).items()})
        log = EventLog.open(path / LOG, everything=everything)
    except DataError as error:
        raise DataError(f"{error} {log_cure(path)}") from None
    return RunFolder(
        path=path,
        config=config,
        log=log,
        num_threads=record.get("num_threads", 1),
        id=record.get("id", ""),
    )


def read_run_record(path: Path) -> dict[str, Any]:
    """The content of run.json; raises as `open_run` does."""
    file = path / RECORD
    if not os.path.lexists(file):
        if path.is_file():
            raise UsageError(
                f"{path} is a file; expected the folder of a run, which `tapas train` creates."
            )
        hint = "" if path.is_dir() else " There is no such folder."
        raise UsageError(
            f"{path} holds no run ({RECORD} is missing).{hint} Create one with "
            f"`tapas train ... --out {shell_path(path)}`."
        )
    try:
        record = read_json(file)
        check_format(file, record, "run", FORMAT)
        if not _is_record(record):
            raise not_as_saved(file)
    except DataError as error:
        raise DataError(f"{error} Restore it from another copy of the run.") from None
    return record


def _is_record(record: dict[str, Any]) -> bool:
    """Whether `record` has what is read later; one of an earlier version has no id and files."""
    threads, id, files = (record.get(name) for name in ("num_threads", "id", "files"))
    if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
        return False
    if (id is None) != (files is None):
        return False
    return id is None or (
        isinstance(id, str)
        and isinstance(files, dict)
        and [*files] == [LOG_RECORD]
        and is_checksum(files[LOG_RECORD])
    )


def read_config(path: Path, id: str) -> dict[str, Any]:
    """The tables of config.toml of the run `id` in `path`; DataError if it is damaged."""
    file = path / CONFIG
    try:
        text = read_stored(file)
        check_text(text, id)
    except OSError as error:
        raise DataError(
            f"{file} cannot be read: {error.strerror}. Restore it from another copy of the run."
        ) from error
    except DataError:
        raise
    except ValueError:
        raise DataError(
            f"{differs(file)} Restore it from another copy of the run; if you changed it yourself, "
            "delete its first line."
        ) from None
    tables = read_toml(file)
    if not tables.get("log", {}).get("files"):
        raise DataError(
            f"{file} is damaged: it names no log. Restore it from another copy of the run."
        )
    return tables


def read_restore_point(file: Path) -> int | None:
    """The step in restore.json, None for the start of the run; DataError if it is damaged."""
    step = read_json(file).get("step", -1)
    if step is not None and (type(step) is not int or step < 0):
        raise not_as_saved(file)
    return step


def best_step(checkpoints: CheckpointFolder) -> int | None:
    """The step of the best checkpoint; None if none is known to be the best yet.

    Raises DataError if the best one is missing, or may be one that cannot be read.
    """
    found, steps = checkpoints.best(), checkpoints.steps()
    if not steps or found == steps[-1]:
        return found
    progress = read_record(checkpoints.find()[1])["state"].get("progress", {})
    best = progress.get("best_step") if isinstance(progress, dict) else None
    if best not in (None, found):
        raise DataError(
            f"the best checkpoint, that of step {best}, is missing in {checkpoints.folder}. "
            f"Restore it from another copy of the run, or use the newest with --step {steps[-1]}."
        )
    return found


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
            for name in (CONFIG, JOURNAL):
                with suppress(OSError):
                    (path / name).unlink()


def _refusal(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot write into {path}: {error.strerror or error}. Choose another folder with --out."
    )
