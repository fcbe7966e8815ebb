"""Parts that processes without a group write: joined, they are what a group would have saved."""

import errno
import pickle
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

from tapas import DataError, UsageError
from tapas.checkpoints import pieces
from tapas.checkpoints.piece_plans import Reader
from tapas.checkpoints.pieces import Piece, join_parts, load_pieces, save_pieces, write_part
from tapas.rng import stream

C = 11
WRITERS = (1, 2, 3, 5)


@pytest.fixture(autouse=True)
def _several_stretches(monkeypatch):
    monkeypatch.setattr(pieces, "STRETCH_BYTES", 25)  # of two rows of three numbers


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "saved").mkdir()
    return tmp_path / "saved"


def whole() -> dict[str, torch.Tensor]:
    draws = stream(0, "rows")
    return {
        "row": torch.randn(C, 3, generator=draws),
        "bias": torch.randn(C, generator=draws).bfloat16(),
        "none": torch.zeros(0, 4),
    }


def held_by(writer: int, num_writers: int) -> dict[str, Piece]:
    cuts = [C * n // num_writers for n in range(num_writers + 1)]
    start, stop = cuts[writer], cuts[writer + 1]
    rows = {k: Piece(v[start:stop], start, C) for k, v in whole().items() if len(v)}
    return rows | {"none": Piece(torch.zeros(0, 4), 0, 0)}


def write_all(folder, num_writers):
    return [write_part(folder, n, held_by(n, num_writers)) for n in range(num_writers)]


def refused(call, kind=UsageError) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


def contents(folder) -> dict:
    """What is where, without the order in which it was noted down."""
    found = Reader(folder).read_metadata()
    chunks = {
        name: (
            each.size,
            each.properties.dtype,
            sorted((*c.offsets, *c.sizes) for c in each.chunks),
        )
        for name, each in found.state_dict_metadata.items()
    }
    places = {
        (index.fqn, index.offset): (at.relative_path, at.offset, at.length)
        for index, at in found.storage_data.items()
        if index.fqn != "none"  # any part may have it
    }
    return {"chunks": chunks, "places": places, "version": found.version}


@pytest.mark.parametrize("num_writers", WRITERS)
def test_joined_parts_are_what_one_process_writes_for_as_many(tmp_path, folder, num_writers):
    (other := tmp_path / "other").mkdir()
    cuts = [C * n // num_writers for n in range(num_writers + 1)]
    rows = {
        k: [Piece(v[a:b], a, C) for a, b in pairwise(cuts)] for k, v in whole().items() if len(v)
    }
    save_pieces(other, rows | {"none": Piece(torch.zeros(0, 4), 0, 0)}, alone=True)
    join_parts(folder, write_all(folder, num_writers))
    names = {".metadata", *(f"__{n}_0.distcp" for n in range(num_writers))}
    assert {file.name for file in folder.iterdir()} == names
    assert contents(folder) == contents(other)
    assert (folder / "__0_0.distcp").read_bytes() == (other / "__0_0.distcp").read_bytes()
    found = {name: torch.zeros_like(tensor) for name, tensor in whole().items()}
    load_pieces(folder, found)
    assert all(torch.equal(found[name], tensor) for name, tensor in whole().items())
    assert not dist.is_initialized()


def test_a_part_of_plain_tensors_stands_beside_the_others(folder):
    parts = write_all(folder, 2)
    tensors = {"number": torch.tensor(2.5), "turned": whole()["row"].T}
    join_parts(folder, [*parts, write_part(folder, 2, tensors)])
    found = {"number": torch.tensor(0.0), "turned": torch.zeros(3, C), "row": torch.zeros(C, 3)}
    load_pieces(folder, found)
    assert found["number"] == 2.5
    assert torch.equal(found["turned"], found["row"].T)
    assert torch.equal(found["row"], whole()["row"])


def test_a_part_that_holds_nothing_is_one_too(folder):
    parts = [write_part(folder, 0, {}), write_part(folder, 1, held_by(0, 1))]
    join_parts(folder, parts)
    assert (folder / "__0_0.distcp").read_bytes() == b""
    found = torch.zeros(C, 3)
    load_pieces(folder, {"row": found})
    assert torch.equal(found, whole()["row"])


def test_parts_come_in_any_order_through_any_pickle_and_are_small(tmp_path, folder):
    parts = pickle.loads(pickle.dumps(write_all(folder, 3)[::-1]))
    join_parts(folder, parts)
    found = torch.zeros(C, 3)
    load_pieces(folder, {"row": found})
    assert torch.equal(found, whole()["row"])
    large = write_part(tmp_path, 7, {"large": Piece(torch.zeros(5, 2**20), 0, 5)})
    assert len(pickle.dumps(large)) < 5_000


def test_written_again_it_is_the_same_part(folder):
    first = write_part(folder, 1, held_by(1, 2))
    (folder / "__1_0.distcp").write_bytes(b"half")
    assert write_part(folder, 1, held_by(1, 2)) == first
    join_parts(folder, [write_part(folder, 0, held_by(0, 2)), first])
    found = torch.zeros(C, 3)
    load_pieces(folder, {"row": found})
    assert torch.equal(found, whole()["row"])


def test_there_is_nothing_to_load_before_the_parts_are_joined(folder):
    write_all(folder, 2)
    words = f"{folder / '.metadata'} cannot be read: No such file or directory."
    assert refused(lambda: load_pieces(folder, {"row": torch.zeros(C, 3)}), DataError) == words


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([0, 2], "the parts of a checkpoint have the numbers 0, 2; expected each of 0 to 1 once."),
        ([1, 2], "the parts of a checkpoint have the numbers 1, 2; expected each of 0 to 1 once."),
        (
            [0, 1, 1, 2],
            "the parts of a checkpoint have the numbers 0, 1, 1, 2; expected each of 0 to 3 once.",
        ),
        ([0, 1], "the pieces of 'row' make up 7 of 11 rows."),
    ],
)
def test_a_part_that_is_missing_or_given_twice_is_told(folder, numbers, words):
    parts = write_all(folder, 3)
    told = refused(lambda: join_parts(folder, [parts[n] for n in numbers]))
    cure = "" if words.startswith("the pieces") else " Give every writer a number of its own."
    assert told == words + cure
    assert not (folder / ".metadata").exists()


def test_rows_that_two_parts_hold_are_told(folder):
    parts = [write_part(folder, 0, held_by(0, 2)), write_part(folder, 1, held_by(0, 1))]
    words = "the pieces of 'row' do not meet: one ends before row 2, the next begins at row 0."
    assert refused(lambda: join_parts(folder, parts)) == words


def test_a_plain_tensor_in_two_parts_is_told(folder):
    parts = [write_part(folder, n, {"a": torch.ones(2)}) for n in (0, 1)]
    assert refused(lambda: join_parts(folder, parts)) == (
        "tensor 'a' is whole in part 0 and in part 1. Let one of them write it, or each a piece."
    )
    parts[0] = write_part(folder, 0, {"a": Piece(torch.ones(2), 0, 2)})
    assert refused(lambda: join_parts(folder, parts)) == (
        "tensor 'a' is whole in part 1 and a piece in part 0. Let one write all of it, or each a "
        "piece."
    )


def test_a_file_that_is_not_seen_here_is_told(folder):
    parts = write_all(folder, 2)
    file = folder / "__1_0.distcp"
    size = file.stat().st_size
    words = (
        f"part 1 has written {file.name} of {size:,} bytes, but here {folder} has {{}}. All "
        "writers need one folder that all of them see."
    )
    file.write_bytes(b"of another")
    assert refused(lambda: join_parts(folder, parts)) == words.format("10 bytes")
    file.unlink()
    assert refused(lambda: join_parts(folder, parts)) == words.format("none")
    assert not (folder / ".metadata").exists()


@pytest.mark.parametrize("call", ["write", "join"])
def test_a_folder_that_is_not_there_is_an_os_error_and_not_made(tmp_path, call):
    gone = tmp_path / "gone"
    with pytest.raises(OSError, match="No such file") as error:
        write_part(gone, 0, {}) if call == "write" else join_parts(gone, [])
    assert error.value.errno == errno.ENOENT
    assert not gone.exists()
