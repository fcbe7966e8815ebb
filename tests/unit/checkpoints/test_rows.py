"""Rows of tables in checkpoints: saved by one process or by servers, read by any number of them.

What real ranks save and load is in tests/distributed/test_checkpoint_ranks.py.
"""

import errno
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from damage import rewrite
from oracle.stored_rows import (
    HEAD,
    INPUTS,
    NUMBERS,
    STATE,
    C,
    D,
    dense_tensors,
    flip,
    held_by,
    kept_by,
    part_of,
    refused,
    same,
    table_tensors,
    wanted,
)
from ranks import CONTEXT

from tapas import DataError, UsageError
from tapas.checkpoints import files as checkpoint_files
from tapas.checkpoints import folder as checkpoint
from tapas.checkpoints import rows as checkpoint_rows
from tapas.checkpoints.describe import describe
from tapas.checkpoints.folder import CheckpointFolder, Contents
from tapas.checkpoints.rows import TableRows, write_rows
from tapas.errors import PeerError
from tapas.tables.placement import Placement, RowRange
from tapas.tables.ranks import Ranks


def serve(folder: Path, number: int, num_servers: int):
    """Server `number` writes."""
    return write_rows(folder, number, kept_by(wanted(number, num_servers)))


def servers(num_servers: int, numbers=None):
    """`num_servers` servers in this process; those with `numbers` write."""
    asked = range(num_servers) if numbers is None else numbers
    return lambda folder: [serve(folder, number, num_servers) for number in asked]


def save(at: Path, num_servers: int, *, step: int = 7, ask=None) -> Path:
    contents = Contents(dense_tensors(), numbers=NUMBERS)
    return CheckpointFolder(at).save(step, contents, STATE, servers=ask or servers(num_servers))


def save_alone(at: Path) -> Path:
    return CheckpointFolder(at).save(7, held_by(0, 1), STATE)


WRITERS = {"one process": save_alone, "2 servers": lambda at: save(at, 2)}


@pytest.fixture(params=WRITERS)
def folder(request, tmp_path):
    WRITERS[request.param](tmp_path)
    return CheckpointFolder(tmp_path)


def is_untouched(at: Path) -> bool:
    """Whether there is only step 1, and it is valid."""
    found = CheckpointFolder(at).load(1).tensors
    return same(found, table_tensors() | dense_tensors()) and os.listdir(at) == ["step-00000001"]


@pytest.mark.parametrize("order", ["same", "other"])
@pytest.mark.parametrize("num_readers", [1, 2, 3, C])
def test_any_number_of_readers_gets_its_rows(folder, monkeypatch, num_readers, order):
    monkeypatch.setattr(checkpoint_rows, "READ_BYTES", 5 * 4 * D)  # in several blocks
    for number in range(num_readers):
        ranges = wanted(number, num_readers, order=order)
        want = {
            name: part_of(tensor, ranges[name.rpartition(".")[0]])
            for name, tensor in table_tensors().items()
        }
        rows = folder.load_rows(7, ranges, reader=number, num_readers=num_readers)
        assert same(rows.tensors, want)
        assert (rows.step, rows.state, rows.numbers) == (7, STATE, NUMBERS)
        assert same(folder.load(ranges=ranges).tensors, want | dense_tensors())
    assert same(folder.load().tensors, table_tensors() | dense_tensors())


def test_dense_tensors_are_loaded_without_reading_rows(folder, monkeypatch):
    monkeypatch.setattr(checkpoint_rows, "safe_open", None)
    found = folder.load_dense()
    assert same(found.tensors, dense_tensors())
    assert (found.step, found.state) == (7, STATE)


def test_only_the_tables_and_files_with_wanted_rows_are_read(tmp_path, monkeypatch):
    save(tmp_path, 4)
    opened, safe_open = set(), checkpoint_rows.safe_open
    monkeypatch.setattr(
        checkpoint_rows, "safe_open", lambda at, **k: (opened.add(at.name), safe_open(at, **k))[1]
    )
    found = CheckpointFolder(tmp_path).load_rows(None, {HEAD: wanted(1, 2)[HEAD]}).tensors
    assert found.keys() == {name for name in table_tensors() if name.startswith(HEAD)}
    assert opened == {"rows-2.safetensors", "rows-3.safetensors"}


def test_the_record_says_which_rows_are_where_and_has_all_checksums(tmp_path):
    path = save(tmp_path, 2)
    record = json.loads((path / "state.json").read_text())
    files = ["rows-0.safetensors", "rows-1.safetensors", "dense.safetensors"]
    assert list(record["files"]) == files
    assert {p.name for p in path.iterdir()} == {*files, "state.json"}
    assert record["files"] == {f: checkpoint_files.checksum(path / f) for f in files}
    assert record["processes"] == 2
    assert record["tables"][HEAD] == {
        "num_classes": C,
        "dim": D,
        "order": {"kind": "random", "seed": 4},
        "tensors": {
            "weight": {"dtype": "float32", "shape": [C, D]},
            "bias": {"dtype": "float32", "shape": [C]},
            "weight_sum": {"dtype": "float32", "shape": [C, 1]},
            "bias_sum": {"dtype": "float32", "shape": [C, 1]},
        },
        "ranges": [["rows-0.safetensors", 0, 12], ["rows-1.safetensors", 12, C]],
    }
    assert record["tables"][INPUTS]["tensors"]["bias"] == {"dtype": "bfloat16", "shape": [0]}
    told = describe(path)
    assert (told["processes"], told["valid"]) == (2, True)
    assert told["tables"][1]["optimizer_state"] == ["mean", "square"]


def test_rows_outside_servers_are_saved_by_the_process_that_keeps_them(tmp_path):
    mine = {"model.tree": TableRows(RowRange.all_by_id(2), {"weight": torch.eye(2)})}
    folder = CheckpointFolder(tmp_path)
    path = folder.save(7, Contents(dense_tensors(), mine), {}, servers=servers(2))
    assert (path / "rows-2.safetensors").exists()
    want = {"model.tree.weight": torch.eye(2)} | table_tensors() | dense_tensors()
    assert same(folder.load().tensors, want)


def test_what_cannot_be_loaded_is_an_error(folder):
    path = folder.folder / "step-00000007"

    def of_range(prefix, num_classes, number=0):
        return lambda: folder.load(ranges={prefix: RowRange(Placement(num_classes, 2), number)})

    calls = {
        f"unknown table in {path} 'model.head.tabel'. Did you mean 'model.head.table'? Known: "
        "model.head.table, model.input_table.": of_range("model.head.tabel", C),
        f"model.head.table in {path} has 23 classes; expected 30. `tapas checkpoint "
        "grow` adds classes.": of_range(HEAD, 30),
        "model.head.table has no shard 2; expected 0 to 1.": of_range(HEAD, C, 2),
        "reader must be one of 0 to 1, got -1.": lambda: folder.load_dense(
            reader=-1, num_readers=2
        ),
        "reader must be one of 0 to 1, got 2.": lambda: folder.load_dense(reader=2, num_readers=2),
    }
    for words, call in calls.items():
        assert refused(call) == words


def test_readers_share_the_work_of_verifying(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(tmp_path, 2, step=6)
    path = save(tmp_path, 2)

    def words(name):
        return (
            f"{path / name} is damaged: its checksum differs from the one it was saved with. Step "
            "6 is valid: use it with --step 6."
        )

    flip(path / "dense.safetensors")
    for reader in (0, 1):
        folder.load_rows(7, wanted(reader, 2), reader=reader, num_readers=3)
    want = words("dense.safetensors")
    assert refused(lambda: folder.load_dense(reader=2, num_readers=3), DataError) == want
    assert refused(folder.load_dense, DataError) == want
    flip(path / "rows-1.safetensors")
    folder.load_rows(7, wanted(0, 2), reader=0, num_readers=3)
    call = lambda: folder.load_rows(7, wanted(1, 2), reader=1, num_readers=3)  # noqa: E731
    assert refused(call, DataError) == words("rows-1.safetensors")
    flip(path / "rows-1.safetensors")  # and is valid again
    call()
    (path / "rows-1.safetensors").unlink()
    assert refused(
        lambda: folder.load_rows(7, wanted(0, 2), reader=0, num_readers=3), DataError
    ) == (
        f"{path / 'rows-1.safetensors'} cannot be read: No such file or directory. Step 6 is "
        "valid: use it with --step 6."
    )


DAMAGED = "{at}/state.json is damaged: it is not the JSON that was saved. "


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranges": [["rows-0.safetensors", 0, 12]]}, DAMAGED),
        ({"ranges": [["rows-0.safetensors", 0, 12], ["rows-1.safetensors", 13, C]]}, DAMAGED),
        ({"ranges": [["rows-0.safetensors", 0, 12], ["rows-7.safetensors", 12, C]]}, DAMAGED),
        ({"ranges": [["rows-0.safetensors", 0, 40], ["rows-1.safetensors", 40, C]]}, DAMAGED),
        ({"tensors": {"weight": {"dtype": "nn", "shape": [C, D]}}}, DAMAGED),
        (
            {"ranges": [["rows-0.safetensors", 0, 9], ["rows-1.safetensors", 9, C]]},
            f"{{at}}/rows-0.safetensors has {HEAD}.weight of shape [12, 3] and torch.float32; "
            "expected [9, 3] and torch.float32.",
        ),
    ],
)
def test_a_record_whose_ranges_do_not_cover_the_table_is_damaged(tmp_path, change, words):
    file = save(tmp_path, 2) / "state.json"
    rewrite(file, lambda record: record["tables"][HEAD].update(change))
    told = refused(CheckpointFolder(tmp_path).load, DataError)
    assert told.startswith(words.format(at=file.parent))


def after(numbers, error):
    """Servers with `numbers` write, then `error` is raised."""

    def ask(folder):
        for number in numbers:
            serve(folder, number, 3)
        raise error

    return ask


def other_size(folder):
    return [*servers(3, [0, 1])(folder), write_rows(folder, 2, kept_by(wanted(1, 2, order="o")))]


def full_on_one(folder):
    """All servers write, but the disk of server 1 is full."""

    def full(*_):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoint_rows, "write_file", full)
        failed = serve(folder, 1, 3)
    return [serve(folder, 0, 3), failed, serve(folder, 2, 3)]


CANNOT = (
    "cannot save checkpoint step 2 into {}: {}. Checkpoint step 1 is valid. {} and continue with "
)
WRONG = (
    "servers 0, 1, 1, 2 have written rows; expected each of 0 to 3 once. Give every server a "
    "different number."
)


@pytest.mark.parametrize(
    ("ask", "kind", "words"),
    [
        (
            after([0, 1], OSError(errno.ENOSPC, "No space left on device at b")),
            UsageError,
            CANNOT.format("{at}", "No space left on device at b", "Free some space") + "--resume.",
        ),
        (
            full_on_one,
            UsageError,
            CANNOT.format("{at}", "Disk quota exceeded on server 1", "Free some space")
            + "--resume.",
        ),
        (after([0, 2], PeerError("server 1 is gone.")), PeerError, "server 1 is gone."),
        (after([0, 1, 2], KeyboardInterrupt("now")), KeyboardInterrupt, "now"),
        (
            servers(3, []),
            UsageError,
            "no server has written rows; expected at least one.",
        ),
        (
            servers(3, [0, 1]),
            UsageError,
            "no process has written rows 16 to 22 of model.head.table; expected each of its 23 "
            "rows once.",
        ),
        (servers(3, [0, 1, 1, 2]), UsageError, WRONG),
        (
            other_size,
            UsageError,
            "the processes that keep rows of model.head.table differ in its size, dtype or row "
            "order. Build the table with the same arguments in all of them.",
        ),
    ],
)
def test_a_failed_server_leaves_the_old_checkpoint(tmp_path, ask, kind, words):
    save(tmp_path, 3, step=1)
    told = refused(lambda: save(tmp_path, 3, step=2, ask=ask), kind)
    assert told.startswith(words.format(at=tmp_path))
    assert is_untouched(tmp_path)
    save(tmp_path, 3, step=2)
    assert CheckpointFolder(tmp_path).steps() == [1, 2]


class TwoRanks(Ranks):
    size = 2


def test_what_cannot_be_saved_is_an_error(tmp_path):
    folder = CheckpointFolder(tmp_path / "none")
    rows = {HEAD: TableRows(wanted(0, 2)[HEAD], {"weight": torch.zeros(5, D)})}
    odd = {"kind": "Mine", "param_groups": [{"lr": len}]}
    calls = [
        (Contents({}, rows), f"{HEAD}.weight has 5 rows; expected 12, the positions 0 to 12 of "),
        (
            Contents({}, optimizers=[odd]),
            "optimizers[0].param_groups[0].lr is of type builtin_function_or_method; expected ",
        ),
        (Contents({}, numbers={"a": {"b": {1}}}), "numbers.a.b is of type set; expected numbers"),
    ]
    for contents, words in calls:
        assert refused(lambda contents=contents: folder.save(1, contents, {})).startswith(words)
    assert refused(lambda: folder.save(1, {}, {}, ranks=TwoRanks(), servers=servers(2))) == (
        "servers were passed together with 2 ranks, but only one process can save for servers. "
        "Leave out `servers` or `ranks`."
    )
    assert not list(folder.folder.glob("*"))


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def save_and_die(at: Path, place: str) -> None:
    """Save step 2 and exit after the servers have written, before or after state.json."""
    if place == "rename":
        os.rename = die
    else:
        setattr(checkpoint, place, die)
    save(at, 3, step=2)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["write_file", "write_state", "rename"])
def test_a_kill_after_the_servers_have_written_leaves_the_old_checkpoint(tmp_path, place):
    save(tmp_path, 3, step=1)
    process = CONTEXT.Process(target=save_and_die, args=(tmp_path, place))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    (left,) = tmp_path.glob(".step-00000002.*.unfinished/checkpoint")
    assert (left / "rows-2.safetensors").exists()
    assert (left / "dense.safetensors").exists() == (place != "write_file")
    assert (left / "state.json").exists() == (place == "rename")
    folder = CheckpointFolder(tmp_path)
    assert folder.steps() == [1]
    assert same(folder.load().tensors, table_tensors() | dense_tensors())
    save(tmp_path, 3, step=3)
    assert sorted(os.listdir(tmp_path)) == ["step-00000001", "step-00000003"]
