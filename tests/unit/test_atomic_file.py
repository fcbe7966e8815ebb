"""Atomic writes: a file is complete or absent, also on a full disk."""

import errno
import fcntl
import os
import re
import resource
from contextlib import contextmanager, suppress

import pytest
import torch
from torch import nn

from tapas import UsageError, atomic_file
from tapas.atomic_file import (
    OutputFolder,
    atomic_write,
    is_taken,
    private_folder,
    remove_leftovers,
    sync,
    unfinished_folder,
)
from tapas.retrieval import build_index, export_embeddings, export_encoder

D = 3


@contextmanager
def a_full_disk():
    """Limit all files that this process writes to 64 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Doubled(nn.Module):
    def forward(self, items, lengths):
        return 2.0 * items


def write_embeddings(folder):
    path, c = folder / "file.safetensors", 40
    return lambda: export_embeddings(path, torch.zeros(c, D), torch.zeros(c), range(c))


def write_index(folder, c=40):
    pytest.importorskip("faiss")
    index = build_index(torch.zeros(c, D), torch.zeros(c))
    return lambda: index.save(folder / "file.faiss")


def write_large_index(folder):
    return write_index(folder, 200_000)


def write_encoder(folder):
    example = torch.ones(2, D).long(), torch.ones(2).long()
    return lambda: export_encoder(Doubled(), folder / "file.pt2", example)


@pytest.mark.parametrize(
    "prepare", [write_embeddings, write_index, write_large_index, write_encoder]
)
def test_a_full_disk_leaves_nothing_behind(prepare, tmp_path):
    write = prepare(tmp_path)
    with (
        a_full_disk(),
        pytest.raises(UsageError, match=r"cannot write .*file\.\w+: [\s\S]*File too large"),
    ):
        write()
    assert list(tmp_path.iterdir()) == []
    write()
    assert len(list(tmp_path.iterdir())) == 1


def test_an_export_follows_the_umask_as_any_file_does(tmp_path):
    before = os.umask(0o027)
    try:
        write_embeddings(tmp_path)()
    finally:
        os.umask(before)
    assert (tmp_path / "file.safetensors").stat().st_mode & 0o777 == 0o640


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with atomic_write(path) as unfinished:
        unfinished.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    with pytest.raises(UnicodeEncodeError), atomic_write(path) as unfinished:
        unfinished.write_text("half \u20ac", encoding="ascii")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_results_and_no_half_written_one(monkeypatch, tmp_path):
    folder = OutputFolder(tmp_path)
    folder.write({"a": b"old", "b": b"old"})
    calls = []

    def fsync(_):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UsageError) as error:
        folder.write({"a": b"fresh", "b": b"fresh"})
    assert str(error.value) == (
        f"cannot write into {tmp_path}: No space left on device. Choose another folder with --out."
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a": b"old",
        "b": b"old",
    }


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(monkeypatch, tmp_path):
    (tmp_path / "taken").write_text("mine")
    for place in ("taken", "taken/below"):
        with pytest.raises(UsageError, match=f"{place}: a file is in the way. Choose another"):
            OutputFolder(tmp_path / place)
    assert (tmp_path / "taken").read_text() == "mine"

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(UsageError, match="Read-only file system"):
        OutputFolder(tmp_path)


KEY = "0123456789abcdef"


def left_over(folder, name, key=KEY):
    """A private folder as a killed process leaves it."""
    left = folder / f".{name}.{key}.unfinished"
    (left / "folder" / "below").mkdir(parents=True)
    for file in (".lock", "file.csv", "folder/below/file"):
        (left / file).touch()
    return left


def test_a_private_folder_is_private_and_gone_afterwards(tmp_path):
    before = os.umask(0)
    try:
        with private_folder(tmp_path / "a.csv") as folder:
            assert folder.stat().st_mode & 0o777 == 0o700
            assert re.fullmatch(r"\.a\.csv\.[0-9a-f]{16}\.unfinished", folder.name)
            (folder / "link").symlink_to(tmp_path)
            (folder / "deep").mkdir()
            (folder / "deep" / "file").touch()
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_the_same_target_are_removed_and_nothing_else(tmp_path):
    left_over(tmp_path, "a.csv")
    (tmp_path / f".a.csv.{'0' * 16}.unfinished").mkdir()  # killed before there was a lock
    other = left_over(tmp_path, "b.csv")
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / ".lock").touch()
    kept = [
        tmp_path / f".a.csv.{KEY}0.unfinished",
        tmp_path / f".a.csv.{KEY}.unfinished.csv",
        tmp_path / ".a.csv.77.unfinished",
    ]
    for folder in kept:
        folder.mkdir()
        (folder / ".lock").touch()
    link = tmp_path / f".a.csv.{'1' * 16}.unfinished"
    link.symlink_to(victim)
    no_lock = tmp_path / f".a.csv.{'2' * 16}.unfinished"
    no_lock.mkdir()
    (no_lock / "precious").touch()
    linked_lock = tmp_path / f".a.csv.{'3' * 16}.unfinished"
    linked_lock.mkdir()
    (linked_lock / ".lock").symlink_to(victim / ".lock")
    with private_folder(tmp_path / "a.csv") as at_work:
        with atomic_write(tmp_path / "a.csv") as unfinished:
            unfinished.write_text("new")
        expected = {at_work, other, victim, link, no_lock, linked_lock, *kept}
        assert set(tmp_path.iterdir()) == {*expected, tmp_path / "a.csv"}
    assert (victim / ".lock").exists()
    remove_leftovers(tmp_path)
    assert not other.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_leftovers_of_another_user_are_not_touched(tmp_path):
    left = left_over(tmp_path, "a.csv")
    os.chown(left, 12_345, -1)
    remove_leftovers(tmp_path)
    assert (left / "file.csv").exists()


def test_links_under_names_that_could_be_guessed_are_not_followed(tmp_path):
    """Earlier names had the id of the process in them."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    out = tmp_path / "shared"
    out.mkdir()
    for pid in range(os.getpid() - 9, os.getpid() + 9):
        for name in (f".o.{pid}.unfinished.csv", f".o.csv.{pid}.unfinished", ".o.csv.unfinished"):
            with suppress(FileExistsError):
                (out / name).symlink_to(victim)
    with atomic_write(out / "o.csv") as unfinished:
        unfinished.write_text("new")
    OutputFolder(out).write({"p.csv": b"new"})
    assert victim.read_text() == "mine"
    for name in ("o.csv", "p.csv"):
        assert (out / name).read_text() == "new"
        assert not (out / name).is_symlink()


def test_a_private_folder_that_is_taken_for_a_left_over_is_made_again(tmp_path, monkeypatch):
    """Another process looks between mkdir and the lock, or between the lock's file and its lock."""
    flock, mkdir, seen = fcntl.flock, os.mkdir, []

    def looked_at(path, mode=0o777):
        mkdir(path, mode)
        monkeypatch.setattr(os, "mkdir", mkdir)
        remove_leftovers(tmp_path)
        seen.append(path)

    def looked_at_once_more(lock, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        remove_leftovers(tmp_path)
        seen.append(lock)
        flock(lock, how)

    monkeypatch.setattr(os, "mkdir", looked_at)
    monkeypatch.setattr(fcntl, "flock", looked_at_once_more)
    with private_folder(tmp_path / "a") as folder:
        assert list(tmp_path.iterdir()) == [folder]
        remove_leftovers(tmp_path)
        assert folder.exists()
    assert len(seen) == 2
    assert list(tmp_path.iterdir()) == []


def test_without_locks_everything_is_written_and_no_left_over_is_removed(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    left = left_over(tmp_path, "a")
    monkeypatch.setattr(fcntl, "flock", flock)
    with atomic_write(tmp_path / "a") as unfinished:
        unfinished.write_text("new")
    assert set(tmp_path.iterdir()) == {tmp_path / "a", left}


def test_names_of_any_bytes_and_any_length_can_be_written(tmp_path):
    for name in ("é" * 127, "[1]*?\n.csv", os.fsdecode(b"\xff\xfe.csv")):
        path = tmp_path / name
        left_over(tmp_path, os.fsencode(name)[:200].decode(errors="ignore"))
        with atomic_write(path) as unfinished:
            unfinished.write_text("whole")
        assert path.read_text() == "whole"
        path.unlink()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_is_replaced_only_if_it_has_the_named_file(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(atomic_file, "EXCHANGE", 1 << 30)  # the call fails
    path, link = tmp_path / "out", tmp_path / "link"
    link.symlink_to(path)
    for place in (path, link, path):
        with unfinished_folder(place, replaces="mark") as unfinished:
            (unfinished / "mark").write_text(str(place))
        assert (path / "mark").read_text() == str(place)
        assert [file.name for file in path.iterdir()] == ["mark"]
    for replaces in (None, "other"):
        with (
            pytest.raises(OSError, match="not empty") as error,
            unfinished_folder(path, replaces=replaces),
        ):
            pass
        assert is_taken(error.value)
    assert set(tmp_path.iterdir()) == {path, link}


def test_a_folder_that_was_only_moved_away_comes_back(tmp_path, monkeypatch):
    """Where two folders cannot be exchanged, a kill between two renames, or an error there."""
    path = tmp_path / "out"
    left = left_over(tmp_path, "out")
    (left / "replaced").mkdir()
    (left / "replaced" / "mark").write_text("old")
    monkeypatch.setattr(atomic_file, "EXCHANGE", 1 << 30)
    rename = os.rename

    def fail(source, target):
        if source.name == "folder":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="Input/output"), unfinished_folder(path, replaces="mark"):
        assert (path / "mark").read_text() == "old"
    assert (path / "mark").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_that_cannot_flush_folders_is_used_all_the_same(tmp_path, monkeypatch):
    def fsync(_):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "fsync", fsync)
    sync(tmp_path)
    with pytest.raises(OSError, match="Invalid argument"):
        sync(tmp_path / "file")
