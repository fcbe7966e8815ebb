"""Pieces of tensors on disk: cut anew in any way, bit for bit, and nothing that runs code."""

import errno
import os
import pickle
import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tapas import DataError, UsageError
from tapas.checkpoints import pieces
from tapas.checkpoints.pieces import (
    Piece,
    Stored,
    files_of,
    load_pieces,
    save_pieces,
    stored_shapes,
)
from tapas.rng import stream

C = 11
ROW = torch.arange(3.0 * C).view(C, 3)


def cut(tensor: torch.Tensor, *places: int) -> list[Piece]:
    ends = [0, *sorted(places), len(tensor)]
    return [Piece(tensor[start:stop], start, len(tensor)) for start, stop in pairwise(ends)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "saved").mkdir()
    return tmp_path / "saved"


def refused(call, kind=UsageError) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float16])
@pytest.mark.parametrize("width", [(), (1,), (3,)])
@pytest.mark.parametrize("stretch", [1, 25, 2**20])
def test_rows_are_loaded_in_any_cut(folder, monkeypatch, dtype, width, stretch):
    monkeypatch.setattr(pieces, "STRETCH_BYTES", stretch)
    whole = (torch.randn(C, *width, generator=stream(0, "rows")) * 9).to(dtype)
    save_pieces(folder, {"row": cut(whole, 2, 2, 7)}, alone=True)
    assert stored_shapes(folder) == {"row": Stored((C, *width), dtype)}
    for places in [(), (1, 2, 3), (7,), (0, 5, 5, 11)]:
        for piece in cut(torch.zeros_like(whole), *places):
            load_pieces(folder, {"row": piece})
            want = whole[piece.start : piece.start + len(piece.tensor)]
            assert torch.equal(piece.tensor, want)


@given(saved=st.lists(st.integers(0, C), max_size=4), start=st.integers(0, C), data=st.data())
def test_any_cut_serves_any_stretch(tmp_path_factory, saved, start, data):
    folder = tmp_path_factory.mktemp("cut")
    stop = data.draw(st.integers(start, C))
    save_pieces(folder, {"row": cut(ROW, *saved)}, alone=True)
    found = Piece(torch.zeros(stop - start, 3), start, C)
    load_pieces(folder, {"row": found})
    assert torch.equal(found.tensor, ROW[start:stop])


def test_tensors_without_rows_and_plain_ones_come_back(folder):
    tensors = {
        "none": [Piece(torch.zeros(0), 0, 0)],
        "no rows": Piece(torch.zeros(0, 4), 0, 0),
        "number": torch.tensor(2.5),
        "empty": torch.zeros(0, 2),
        "turned": ROW.T,
        "row": cut(ROW, 4),
    }
    save_pieces(folder, tensors, alone=True)
    found = {"number": torch.tensor(0.0), "turned": torch.zeros(3, C), "row": torch.zeros(C, 3)}
    load_pieces(folder, found | {"none": torch.zeros(0), "empty": torch.zeros(0, 2)})
    assert found["number"] == 2.5
    assert torch.equal(found["turned"], ROW.T)
    assert torch.equal(found["row"], ROW)
    assert stored_shapes(folder)["no rows"].shape == (0, 4)


def test_one_process_writes_the_files_of_as_many_as_it_has_pieces(folder):
    save_pieces(folder, {"a": cut(ROW, 4, 8), "b": cut(ROW[:, 0], 4, 8)}, alone=True)
    names = ["__0_0.distcp", "__1_0.distcp", "__2_0.distcp", ".metadata"]
    assert [file.name for file in files_of(folder)] == names
    assert [file.name for file in files_of(folder, 1)] == [names[1]]
    assert [file.name for file in files_of(folder, 0)] == [names[0], names[3]]


def test_only_files_that_overlap_are_read(folder):
    save_pieces(folder, {"a": cut(ROW, 4, 8)}, alone=True)
    for name in ("__0_0.distcp", "__2_0.distcp"):
        (folder / name).unlink()
    found = Piece(torch.zeros(3, 3), 5, C)
    load_pieces(folder, {"a": found})
    assert torch.equal(found.tensor, ROW[5:8])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([Piece(ROW[:4], 0, C)], "the pieces of 'a' make up 4 of 11 rows."),
        (
            [Piece(ROW[:4], 0, C), Piece(ROW[5:], 5, C)],
            "the pieces of 'a' do not meet: one ends before row 4, the next begins at row 5.",
        ),
        (
            [Piece(ROW[:4], 0, C), Piece(ROW[3:], 3, C)],
            "the pieces of 'a' do not meet: one ends before row 4, the next begins at row 3.",
        ),
        (
            [Piece(ROW[:4], 0, 4), Piece(ROW[4:], 4, C)],
            "the pieces of 'a' are of tensors of shape (11, 3) and (4, 3).",
        ),
    ],
)
def test_pieces_that_make_no_whole_are_refused(folder, given, words):
    assert refused(lambda: save_pieces(folder, {"a": given}, alone=True)) == words


def test_a_piece_outside_its_tensor_is_refused():
    words = "a piece has rows 3 to 6 of 5; expected rows within the whole tensor."
    assert refused(lambda: Piece(torch.zeros(3), 3, 5)) == words
    words = "a piece of a tensor must have rows, got a single number."
    assert refused(lambda: Piece(torch.tensor(3), 0, 1)) == words


def test_what_is_not_stored_so_is_refused(folder):
    save_pieces(folder, {"a": ROW}, alone=True)
    words = f"there is no tensor 'b' in {folder}."
    assert refused(lambda: load_pieces(folder, {"b": torch.zeros(1)})) == words
    words = (
        f"tensor 'a' in {folder} has shape (11, 3) and torch.float32; asked for as (11, 2) and "
        "torch.float64."
    )
    wrong = Piece(torch.zeros(4, 2, dtype=torch.float64), 0, C)
    assert refused(lambda: load_pieces(folder, {"a": wrong})) == words


def test_a_folder_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(OSError, match="No such file") as error:
        save_pieces(tmp_path / "none", {"a": ROW}, alone=True)
    assert error.value.errno == errno.ENOENT
    assert not (tmp_path / "none").exists()


class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps(Bomb()), "it asks for posix.system, which no checkpoint needs."),
        (b"", "Ran out of input."),
        (b"\x80\x04.", "pop from empty list."),
    ],
)
def test_contents_that_would_run_code_are_not_built(folder, monkeypatch, content, words):
    monkeypatch.chdir(folder)
    save_pieces(folder, {"a": ROW}, alone=True)
    (folder / ".metadata").write_bytes(content)
    told = refused(lambda: load_pieces(folder, {"a": torch.zeros(C, 3)}), DataError)
    assert told.startswith(f"{folder / '.metadata'} is damaged: ")
    assert re.search(re.escape(words), told) or content != pickle.dumps(Bomb())
    assert not (folder / "exploded").exists()
