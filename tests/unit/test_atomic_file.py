"""Atomic writes: a file is complete or absent, also on a full disk."""

import errno
import os
import resource
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from tapas import UsageError
from tapas.atomic_file import OutputFolder, atomic_write
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

    monkeypatch.setattr(type(tmp_path), "write_bytes", refuse)
    with pytest.raises(UsageError, match="Read-only file system"):
        OutputFolder(tmp_path)
