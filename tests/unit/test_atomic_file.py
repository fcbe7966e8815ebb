"""Every file that is exported is whole or not there, also on a full disk."""

import resource
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from tapas import UsageError
from tapas.atomic_file import whole_file
from tapas.retrieval import build_index, export_embeddings, export_encoder

D = 3


@contextmanager
def a_full_disk():
    """No file of this process may grow beyond 64 bytes."""
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


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with whole_file(path) as unfinished:
        unfinished.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    with pytest.raises(UnicodeEncodeError), whole_file(path) as unfinished:
        unfinished.write_text("half \u20ac", encoding="ascii")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
