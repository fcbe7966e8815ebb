"""Lets every operation of a program that changes the disk fail once, or be the last of its process.

`Disk` replaces the functions with which Python and our libraries change files by ones that count.
`fails` raises an error at one of them and goes on in the same process; `dies` ends a forked process
there, without any cleaning up, and another one checks what is left. Data is written half in both.
`race` runs a program in several processes that reach its dangerous place at the same time.
"""

import builtins
import errno
import io
import os
import re
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tapas import atomic_file
from tapas.checkpoints import files as checkpoint_files
from tapas.errors import UsageError
from tapas.retrieval import tensor_file

PRIVATE = re.compile(r"/\.[^/]*\.[0-9a-f]{16}\.unfinished/")
DIED = 9  # exit code


@dataclass(frozen=True)
class Program:
    """What is tried: `start` makes the old state in a folder, `change` changes it once.

    `check` is called with the folder, and whether `change` succeeded: it must find the new state,
    or the old one or the new one, complete, and be able to make the next change. After a death it
    is called in another process.
    """

    start: Callable[[Path], object]
    change: Callable[[Path], object]
    check: Callable[[Path, bool], object]


class Disk:
    """Counts operations, and acts at number `at`; their order is checked by `check_order`."""

    def __init__(self, at: int = -1, kind: str = "fails"):
        self.at, self.kind, self.count = at, kind, 0
        self.contents: set[str] = set()  # of files that are not on disk
        self.names: set[str] = set()  # of files and folders, the same
        self.faults: list[str] = []
        self.real: list[tuple[object, str, object]] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        try:
            self._install()
            yield
        finally:
            for owner, name, real in self.real:
                setattr(owner, name, real)

    def _install(self) -> None:
        for name in ("mkdir", "unlink", "rmdir"):
            self._replace(os, name, self._change)
        for owner, name in ((os, "rename"), (os, "replace"), (atomic_file, "_replace_folder")):
            self._replace(owner, name, self._rename)
        self._replace(os, "fsync", self._fsync)
        self._replace(os, "open", self._open_descriptor)
        for owner in (io, builtins):
            self._replace(owner, "open", self._open)
        for owner in (checkpoint_files, tensor_file):
            self._replace(owner, "save_file", self._save)
        self._replace(pl.DataFrame, "write_parquet", self._save)

    def _replace(self, owner, name: str, counted) -> None:
        real = getattr(owner, name)
        self.real.append((owner, name, real))
        setattr(owner, name, lambda *args, **options: counted(real, *args, **options))

    def act(self, half: Callable[[], object] = lambda: None) -> None:
        """Count one operation; at the right one, do half of it, and fail or die."""
        self.count += 1
        if self.count == self.at:
            half()
            if self.kind == "dies":
                os._exit(DIED)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _change(self, real, path, *args, dir_fd=None, **options):
        self.act()
        full = _full(path, dir_fd)
        real(path, *args, **options, **({} if dir_fd is None else {"dir_fd": dir_fd}))
        self._touch(full)

    def _rename(self, real, source, target):
        self.act()
        before, after = os.path.abspath(source), os.path.abspath(target)
        if PRIVATE.search(before) and not PRIVATE.search(after):  # it gets its final name
            self.names.discard(before)
            below = [path for path in self._unsynced() if f"{path}/".startswith(f"{before}/")]
            self.faults += [f"{path} is not on disk" for path in below]
            self.names.add(after)
        return real(source, target)

    def _fsync(self, real, descriptor):
        self.act()
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.contents.discard(path)
        self.names -= {name for name in self.names if os.path.dirname(name) == path}

    def _open_descriptor(self, real, path, flags, mode=0o777, *, dir_fd=None):
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            self.act()
            if flags & os.O_CREAT:  # a file without a name has O_TMPFILE instead
                self._touch(_full(path, dir_fd))
        return real(path, flags, mode, dir_fd=dir_fd)

    def _open(self, real, file, mode="r", *args, **options):
        if isinstance(file, int) or "opener" in options or not set("wax+") & set(mode):
            return real(file, mode, *args, **options)
        self.act()
        self._touch(os.path.abspath(file))
        return _File(real(file, mode, *args, **options), self, os.path.abspath(file))

    def _save(self, real, content, file, **options):
        path = os.path.abspath(file)
        self._touch(path)

        def half():
            real(content, file, **options)
            os.truncate(path, os.path.getsize(path) // 2)

        self.act(half)
        real(content, file, **options)

    def _touch(self, path: str) -> None:
        self.names.add(path)
        if not os.path.isdir(path):
            self.contents.add(path)

    def _unsynced(self) -> list[str]:
        return sorted(path for path in self.contents | self.names if os.path.exists(path))

    def check_order(self) -> None:
        assert not self.faults, self.faults
        assert not self._unsynced(), self._unsynced()


class _File:
    """An open file whose writes are counted."""

    def __init__(self, file, disk: Disk, path: str):
        self._file, self._disk, self._path = file, disk, path

    def write(self, data):
        def half():
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._disk.act(half)
        self._disk.contents.add(self._path)
        return self._file.write(data)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


def _full(path, dir_fd) -> str:
    folder = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
    return os.path.normpath(os.path.join(folder, os.fspath(path)))


def try_all(program: Program, root: Path) -> None:
    """Let `program.change` fail and die at every operation; prints how many there are.

    This process starts no threads, as polars does: it could not be forked any more.
    """
    place, old = root / "place", root / "old"
    place.mkdir()
    forked(lambda: program.start(place))
    place.rename(old)
    forked(lambda: _fail_everywhere(program, place, old))
    shutil.rmtree(place)
    deaths, died = 0, True
    while died:
        shutil.copytree(old, place)
        disk = Disk(deaths + 1, "dies")
        died = forked(lambda disk=disk: _change(program, place, disk)) == DIED
        deaths += died
        place.rename(root / (f"dead {deaths}" if died else "alive"))
    forked(lambda: _check_all(program, place, deaths))
    print(f"dies at {deaths} places")


def _fail_everywhere(program: Program, place: Path, old: Path) -> None:
    disk = Disk()
    shutil.copytree(old, place)
    with disk.installed():
        program.change(place)
    disk.check_order()
    _check(program, place, True)
    for at in range(1, disk.count + 1):
        shutil.rmtree(place)
        shutil.copytree(old, place)
        with _named(f"fails at operation {at}"):
            failing = Disk(at, "fails")
            succeeded = _change(program, place, failing)
            assert failing.count >= at, f"only {failing.count} operations"
            _check(program, place, succeeded)
    print(f"fails at {disk.count} places", flush=True)


def _check_all(program: Program, place: Path, deaths: int) -> None:
    """Check what the processes that died have left, and the one that did not."""
    for at in range(1, deaths + 2):
        died = at <= deaths
        place.with_name(f"dead {at}" if died else "alive").rename(place)
        with _named(f"dies at operation {at}"):
            _check(program, place, not died)
        shutil.rmtree(place)


def _check(program: Program, place: Path, succeeded: bool) -> None:
    program.check(place, succeeded)
    litter = [str(path) for path in place.rglob(".*unfinished")]
    assert not litter, litter


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{what}: {error}") from error


def _change(program: Program, place: Path, disk: Disk) -> bool:
    """Whether it succeeded; if not, it must say so in one sentence."""
    try:
        with disk.installed():
            program.change(place)
    except UsageError as error:
        words = str(error)
        assert words.endswith("."), words
        assert "\n" not in words, words
        return False
    return True


def forked(work: Callable[[], object]) -> int:
    """Run `work` in a forked process; returns its exit code, raises if that is an unknown one."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            work()
        except BaseException:
            os.write(write, traceback.format_exc()[-9_000:].encode())
            code = 3
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if said or code not in (0, DIED):
        raise AssertionError(said or f"exit code {code}")
    return code


def race(num_processes: int, work: Callable[[Callable[[], None]], object]) -> list[str]:
    """`work(wait)` in several forked processes; `wait()` returns once all of them call it.

    Returns for each, in any order, its UsageError, or what it has returned.
    """
    (ready, at_barrier), (barrier, gate) = os.pipe(), os.pipe()

    def wait() -> None:
        os.write(at_barrier, b".")
        os.read(barrier, 1)

    def one(file: Path) -> None:
        os.close(gate)  # the last one opens the barrier
        try:
            file.write_text(str(work(wait)))
        except UsageError as error:
            file.write_text(str(error))
        except BaseException:
            file.write_text(traceback.format_exc())
        finally:
            os.write(at_barrier, b".")  # it may have failed before
            os._exit(0)

    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(number)) for number in range(num_processes)]
        pids = []
        for file in files:
            pids.append(os.fork())
            if pids[-1] == 0:
                one(file)
        for _ in files:
            os.read(ready, 1)
        os.close(gate)
        for pid in pids:
            os.waitpid(pid, 0)
        for descriptor in (barrier, ready, at_barrier):
            os.close(descriptor)
        return sorted(file.read_text() for file in files)
