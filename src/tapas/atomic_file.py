"""Atomic writes: files and folders are made in a private folder, then renamed into place.

    .NAME.0123456789abcdef.unfinished/   beside NAME, readable only by its owner
      .lock                              held while the process that writes NAME lives
      file.csv                           becomes NAME

The name of the private folder cannot be guessed and nothing may exist there, so that nobody can
plant a link under it. A process that is killed leaves it behind, and its lock is free: whoever
writes NAME next removes it.
"""

import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tapas.errors import UsageError

LOCK = ".lock"
REPLACED = "replaced"
LEFTOVER = re.compile(r"\.(?P<label>.*)\.[0-9a-f]{16}\.unfinished", re.DOTALL)
AT_WORKING_DIRECTORY, EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}


@contextmanager
def atomic_write(path: Path, suffix: str = "") -> Iterator[Path]:
    """Yield a temporary path to write to; it is renamed to `path` when the block ends.

    If the block raises or the disk is full, the temporary file is removed and an existing file at
    `path` is unchanged. If `suffix` is given, `path` must end in it. Raises UsageError if `path`
    cannot be written.
    """
    if suffix and path.suffix != suffix:
        raise UsageError(f"{path} must end in {suffix}. Call it {path.with_suffix(suffix).name}.")
    with _refused(path), unfinished_file(path) as unfinished:
        yield unfinished


@contextmanager
def atomic_pair(path: Path, beside: Path) -> Iterator[tuple[Path, Path]]:
    """As `atomic_write`, for `path` and a file `beside` it that is wrong with any other `path`.

    Two files cannot be replaced at once. So the old `beside` is removed first and the new one
    comes last: wherever the process dies, it belongs to `path` or is missing.
    """
    with _refused(path), private_folder(path) as private:
        made = private / f"file{path.suffix}", private / f"beside{beside.suffix}"
        yield made
        for unfinished in made:
            sync(unfinished)
        with suppress(FileNotFoundError):
            os.replace(beside, private / REPLACED)
        sync(path.parent)
        for unfinished, target in zip(made, (path, beside), strict=True):
            os.replace(unfinished, target)
            sync(path.parent)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Raise UsageError if `path` cannot be written."""
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}. Make it first.")
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}. Free some space or choose another "
            "place; nothing unfinished was left behind."
        ) from error


@contextmanager
def unfinished_file(path: Path) -> Iterator[Path]:
    """As `atomic_write`, but raises OSError if `path` cannot be written."""
    with private_folder(path) as private:
        unfinished = private / f"file{path.suffix}"
        yield unfinished
        sync(unfinished)
        os.replace(unfinished, path)
        sync(path.parent)


@contextmanager
def unfinished_folder(path: Path, *, replaces: str | None = None) -> Iterator[Path]:
    """Yield a new folder to write into; it is flushed and renamed to `path` when the block ends.

    An empty folder at `path` is replaced, and one with the file `replaces`. Raises OSError if
    `path` cannot be written; `is_taken(error)` if there is something else.
    """
    path = Path(os.path.realpath(path))  # where a link points to
    for leftover in leftovers(path.parent, path.name):
        if (leftover / REPLACED).exists() and not path.exists():
            os.rename(leftover / REPLACED, path)
    with private_folder(path) as private:
        unfinished = private / "folder"
        unfinished.mkdir()
        yield unfinished
        sync_all(unfinished)
        if replaces is not None and (path / replaces).is_file():
            _replace_folder(unfinished, path)
        else:
            os.rename(unfinished, path)
        sync(path.parent)


def is_taken(error: OSError) -> bool:
    """Whether a rename failed because a folder with files or a file is at the new name."""
    return error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}


@contextmanager
def private_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`; afterwards it is removed with all that is left in it.

    Only this user can read it. What killed processes left for the same target is removed first.
    """
    remove_leftovers(target.parent, target.name)
    with ExitStack() as held:
        folder, inside = _create(target, held)
        try:
            yield folder
        finally:
            with suppress(OSError):
                _remove(folder, inside)


def _create(target: Path, held: ExitStack, tries: int = 9) -> tuple[Path, int]:
    """Create and lock a private folder for `target`; returns it and its descriptor."""
    name = f".{_label(target.name)}.{secrets.token_hex(8)}.unfinished"
    os.mkdir(folder := target.parent / name, 0o700)
    try:
        return folder, held.enter_context(_locked(folder, new=True))
    except (FileNotFoundError, BlockingIOError):
        if not tries:
            raise
        return _create(target, held, tries - 1)  # it was taken for a left-over before the lock
    except BaseException:
        with suppress(OSError):
            folder.rmdir()
        raise


def leftovers(folder: Path, name: str | None = None) -> Iterator[Path]:
    """Private folders in `folder` that killed processes left, each removed after its turn.

    With `name`, only those for the target of this name. They are locked in the meantime.
    """
    try:
        found = sorted(os.listdir(folder))
    except OSError:  # it may be writable, but not readable
        return
    for each in found:
        match = LEFTOVER.fullmatch(each)
        if match is None or (name is not None and match["label"] != _label(name)):
            continue
        path = folder / each
        try:
            with _locked(path) as inside:
                yield path
                _remove(path, inside)
        except FileNotFoundError:  # killed before there was a lock, or another process was faster
            with suppress(OSError):
                path.rmdir()
        except OSError:  # at work, or not ours
            pass


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove private folders that killed processes left in `folder`, see `leftovers`."""
    for _ in leftovers(folder, name):
        pass


def is_private(path: Path) -> bool:
    """Whether `path` has the name of a private folder."""
    return LEFTOVER.fullmatch(path.name) is not None


@contextmanager
def _locked(folder: Path, *, new: bool = False) -> Iterator[int]:
    """Hold the lock of the private folder; yields an open descriptor of the folder.

    Raises BlockingIOError if another process holds it, FileNotFoundError if there is none.
    """
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(inside).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(folder))
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= os.O_CREAT | os.O_EXCL if new else 0
        lock = os.open(LOCK, flags, 0o600, dir_fd=inside)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except OSError:  # a file system without locks: nobody can take it for a left-over
                if not new:
                    raise
            os.stat(LOCK, dir_fd=inside)  # it may have been removed before it was locked
            yield inside
        finally:
            os.close(lock)
    finally:
        os.close(inside)


def _remove(folder: Path, inside: int) -> None:
    """Remove the private folder with the descriptor `inside`; without its lock nobody would."""
    for name in os.listdir(inside):
        if name != LOCK:
            try:
                os.unlink(name, dir_fd=inside)
            except (IsADirectoryError, PermissionError):  # a folder, on Linux or macOS
                shutil.rmtree(name, dir_fd=inside)
    os.unlink(LOCK, dir_fd=inside)
    os.rmdir(folder)


def _label(name: str) -> str:
    """`name`, shortened if that of the private folder would become longer than is allowed."""
    return os.fsencode(name)[:200].decode(errors="ignore")


def _replace_folder(made: Path, path: Path) -> None:
    """Exchange both folders at once; where that is impossible, by two renames."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    sides = [AT_WORKING_DIRECTORY, os.fsencode(made), AT_WORKING_DIRECTORY, os.fsencode(path)]
    if renameat2 is not None and renameat2(*sides, EXCHANGE) == 0:
        return
    os.rename(path, replaced := made.with_name(REPLACED))
    try:
        os.rename(made, path)
    except BaseException:
        os.rename(replaced, path)
        raise


def make_folder(path: Path) -> None:
    """Create the folder `path` with its parents and flush their names to disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


@contextmanager
def usual_mode(path: Path) -> Iterator[None]:
    """Give the file `path`, written inside, the mode that the umask gives to any other file.

    Some libraries create files that only their owner can read.
    """
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


def sync(path: Path) -> None:
    """Flush the file or folder at `path` to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_SYNC or not path.is_dir():
            raise  # some network file systems cannot flush folders
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """Flush `folder` and everything in it to disk."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync(Path(parent, name))
        sync(Path(parent))


class OutputFolder:
    """A folder for results, created if needed and tested for write access.

    Raises UsageError if the folder cannot be written to.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            make_folder(folder)
            with private_folder(folder / "results"):
                pass
        except OSError as error:
            raise self._refusal(error) from error

    def write(self, files: dict[str, bytes]) -> None:
        """Write `files` (name: content); they are renamed into place once all are on disk.

        A reader sees either the old file or the new one, never a partial one.
        """
        try:
            with private_folder(self.folder / "results") as private:
                for name, content in files.items():
                    (private / name).write_bytes(content)
                    sync(private / name)
                for name in files:
                    os.replace(private / name, self.folder / name)
                sync(self.folder)
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> UsageError:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a file is in the way" if is_file else error.strerror or str(error)
        return UsageError(
            f"cannot write into {self.folder}: {reason}. Choose another folder with --out."
        )
