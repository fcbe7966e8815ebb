"""Checkpoints whose rows servers write: as good as those of ranks, and whole or not there."""

import errno
import json
import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from ranks import CONTEXT

from tapas import DataError, LocalTable, UsageError
from tapas.checkpoints import files as checkpoint_files
from tapas.checkpoints import folder as checkpoint
from tapas.checkpoints import rows as checkpoint_rows
from tapas.checkpoints.describe import describe, merge, reshard
from tapas.checkpoints.folder import CheckpointFolder
from tapas.checkpoints.grow import grow
from tapas.checkpoints.parts import load_rest, load_shard, write_shards
from tapas.checkpoints.piece_plans import Writer
from tapas.checkpoints.rows import ShardRows
from tapas.checkpoints.saving import Unwritten
from tapas.errors import PeerError
from tapas.optim import LazyAdam, RowwiseAdagrad
from tapas.rng import stream
from tapas.tables.placement import Placement
from tapas.tables.shard import Shard

C, D, SERVERS = 23, 3, (1, 2, 3, 5)
HEAD, INPUTS = "model.head.table", "model.own_inputs"
OPTIONS = {
    HEAD: {"row_optimizer": RowwiseAdagrad.fused(lr=0.5), "bias": True, "dtype": torch.float32},
    INPUTS: {"row_optimizer": LazyAdam.fused(), "bias": False, "dtype": torch.bfloat16},
}
ORDERS = {HEAD: (4, "random"), INPUTS: (5, "contiguous")}


def whole_tensors() -> dict[str, torch.Tensor]:
    """Two tables by id, one of them without biases."""
    draws, found = stream(0, "rows"), {}
    for prefix, (seed, kind) in ORDERS.items():
        table = LocalTable(C, D, seed=seed, placement=kind, **OPTIONS[prefix])
        for name, held in table.row_tensors().items():
            found[f"{prefix}.{name}"] = torch.randn(held.shape, generator=draws).to(held.dtype)
    return found


def dense_tensors() -> dict[str, torch.Tensor]:
    draws = stream(0, "dense")
    names = ("model.encoder.w", "optimizer.0.exp_avg", "count")
    return {name: torch.randn(4, 5, generator=draws) for name in names}


def state(num_shards: int) -> dict:
    extra = {
        f"{prefix.removeprefix('model.')}.numbers": {
            "num_updates": 7,
            "seed": seed,
            "num_shards": num_shards,
            "placement": kind,
        }
        for prefix, (seed, kind) in ORDERS.items()
    }
    return {"extra": extra, "at": "here"}


def wanted(number: int, num_shards: int, *, swapped: bool = False) -> dict[str, ShardRows]:
    orders = {HEAD: (5, "contiguous"), INPUTS: (9, "random")} if swapped else ORDERS
    return {
        prefix: ShardRows(Placement(C, num_shards, seed=seed, kind=kind), number)
        for prefix, (seed, kind) in orders.items()
    }


def tables_of(number: int, num_servers: int) -> dict[str, Shard]:
    """What server `number` keeps."""
    found = {}
    for prefix, rows in wanted(number, num_servers).items():
        shard = Shard(rows.placement, number, D, device=None, **OPTIONS[prefix])
        for name, held in shard.row_tensors().items():
            given = whole_tensors()[f"{prefix}.{name}"]
            held.copy_(given[rows.placement.ids_of(number)] if len(held) else given)
        found[prefix] = shard
    return found


def serve(folder: Path, number: int, num_servers: int, most_bytes: int | None = None):
    """Server `number` writes; with `most_bytes` no file of it may be larger."""
    if most_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
    return write_shards(folder, number, tables_of(number, num_servers))


def servers(num_servers: int, numbers=None):
    """As many of them, in this process; those with `numbers` answer."""
    asked = range(num_servers) if numbers is None else numbers
    return lambda folder: [serve(folder, number, num_servers) for number in asked]


def save(at: Path, num_servers: int, *, step: int = 7, elsewhere=None, **options) -> Path:
    folder = CheckpointFolder(at)
    ask = servers(num_servers) if elsewhere is None else elsewhere
    return folder.save(step, dense_tensors(), state(num_servers), elsewhere=ask, **options)


def save_alone(at: Path, num_shards: int, step: int = 7) -> Path:
    return CheckpointFolder(at).save(step, whole_tensors() | dense_tensors(), state(num_shards))


def loaded(path: Path) -> dict[str, torch.Tensor]:
    return CheckpointFolder(path.parent).load(int(path.name.removeprefix("step-"))).tensors


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[k], other[k]) and one[k].dtype == other[k].dtype for k in one
    )


def is_untouched(at: Path) -> bool:
    """Nothing but step 1, whole."""
    whole = same(loaded(at / "step-00000001"), whole_tensors() | dense_tensors())
    return whole and os.listdir(at) == ["step-00000001"]


def refused(call, kind=UsageError) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("num_servers", SERVERS)
def test_it_is_what_as_many_ranks_save(tmp_path, num_servers):
    single = save_alone(tmp_path / "single", num_servers)
    reshard(single, by_ranks := tmp_path / "ranks" / "step-00000007", num_servers)
    by_servers = save(tmp_path / "servers", num_servers)
    assert by_servers == tmp_path / "servers" / "step-00000007"
    records = [json.loads((at / "state.json").read_text()) for at in (by_ranks, by_servers)]
    files = [record.pop("files") for record in records]
    assert records[0] == records[1]
    names = [f"__{number}_0.distcp" for number in range(num_servers + 1)]
    assert list(files[1]) == [*names, ".metadata"]
    assert {path.name for path in by_servers.iterdir()} == {*files[1], "state.json"}
    told = [describe(at) | {"path": "", "bytes": 0} for at in (by_ranks, by_servers)]
    assert told[0] == told[1]
    assert told[0]["whole"]
    assert same(loaded(by_servers), whole_tensors() | dense_tensors())
    merge(by_servers, back := tmp_path / "back")
    name = "tensors.safetensors"
    assert (back / name).read_bytes() == (single / name).read_bytes()


def test_it_is_made_into_others(tmp_path):
    single, by_servers = save_alone(tmp_path / "single", 3), save(tmp_path / "servers", 3)
    reshard(by_servers, other := tmp_path / "five" / "step-00000007", 5)
    assert same(loaded(other), loaded(single))
    assert len(list(other.glob("*.distcp"))) == 5
    grow(by_servers, grown := tmp_path / "grown" / "step-00000007", 30)
    grow(single, want := tmp_path / "want" / "step-00000007", 30)
    assert same(loaded(grown), loaded(want))
    assert describe(grown)["ranks"] == 3


def stored_as(layout: str, at: Path) -> CheckpointFolder:
    if layout == "servers":
        save(at, 3)
    else:
        path = save_alone(at if layout == "single" else at / "single", 2)
        if layout == "ranks":
            reshard(path, at / path.name, 4)
    return CheckpointFolder(at)


@pytest.mark.parametrize("layout", ["servers", "ranks", "single"])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_server_loads_its_rows_and_nothing_else(tmp_path, layout, swapped):
    folder = stored_as(layout, tmp_path)
    for num_servers in (1, 3, 4):
        for number in range(num_servers):
            shards = wanted(number, num_servers, swapped=swapped)
            found = load_shard(folder, 7, shards, part=number, parts=num_servers)
            assert (found.step, found.state["at"]) == (7, "here")
            want = {}
            for name, tensor in whole_tensors().items():
                ids = shards[name.rpartition(".")[0]].placement.ids_of(number)
                want[name] = tensor[ids] if len(tensor) else tensor
            assert same(found.tensors, want)
    head = {HEAD: wanted(0, 2)[HEAD]}
    found = load_shard(folder, None, head, part=0, parts=1).tensors
    assert found.keys() == {name for name in whole_tensors() if name.startswith(HEAD)}


@pytest.mark.parametrize("layout", ["servers", "ranks", "single"])
def test_what_is_no_table_is_loaded_without_any_rows(tmp_path, monkeypatch, layout):
    folder, read = stored_as(layout, tmp_path), []
    for kind in (checkpoint_rows.ManyFiles, checkpoint_rows.OneFile):
        whole = kind.whole
        monkeypatch.setattr(kind, "stretch", None)
        monkeypatch.setattr(
            kind, "whole", lambda s, name, whole=whole: (read.append(name), whole(s, name))[1]
        )
    found = load_rest(folder)
    assert same(found.tensors, dense_tensors())
    assert sorted(read) == sorted(dense_tensors())
    assert (found.step, found.state["at"]) == (7, "here")


def test_a_server_reads_no_rows_of_others(tmp_path, monkeypatch):
    folder, read = stored_as("servers", tmp_path), []
    stretch = checkpoint_rows.ManyFiles.stretch

    def counted(source, name, start, stop):
        read.append((name, start, stop))
        return stretch(source, name, start, stop)

    monkeypatch.setattr(checkpoint_rows.ManyFiles, "stretch", counted)
    load_shard(folder, None, shards := wanted(1, 4), part=1, parts=4)
    order = shards[HEAD].placement
    rows = [name for name, tensor in whole_tensors().items() if len(tensor)]
    assert sorted(read) == sorted((name, order.start(1), order.start(2)) for name in rows)


def test_servers_share_the_work_of_checking_and_all_check_the_contents(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(tmp_path, 2, step=6)
    path = save(tmp_path, 2)

    def told(part):
        return refused(
            lambda: load_shard(folder, 7, wanted(part, 2), part=part, parts=3), DataError
        )

    def words(name):
        return (
            f"{path / name} is damaged: its checksum is not the one it was saved with. Step 6 is "
            "whole: take it with --step 6."
        )

    flip(path / "__2_0.distcp")  # of the process beside the servers
    for part in (0, 1):
        load_shard(folder, 7, wanted(part, 2), part=part, parts=3)
    want = words("__2_0.distcp")
    assert refused(lambda: load_rest(folder, part=2, parts=3), DataError) == want
    assert refused(lambda: load_rest(folder), DataError) == want
    flip(path / "__1_0.distcp")
    load_shard(folder, 7, wanted(0, 2), part=0, parts=3)
    assert told(1) == words("__1_0.distcp")
    flip(path / "__1_0.distcp")  # and is whole again
    load_shard(folder, 7, wanted(1, 2), part=1, parts=3)
    flip(path / ".metadata")
    assert told(0) == told(1) == words(".metadata")


@pytest.mark.parametrize("part", [-1, 2])
def test_a_part_that_would_check_nothing_is_refused(tmp_path, part):
    save(tmp_path, 2)
    call = lambda: load_rest(CheckpointFolder(tmp_path), part=part, parts=2)  # noqa: E731
    assert refused(call) == f"part must be one of 0 to 1, got {part}."


def after(numbers, error):
    """Servers with `numbers` write; then comes an error."""

    def ask(folder):
        for number in numbers:
            serve(folder, number, 3)
        raise error

    return ask


CANNOT = "cannot save checkpoint step 2 into {}: {}. Checkpoint step 1 is whole. {} and go on with "
WRONG = "the parts of a checkpoint have the numbers {}; expected each of 0 to {} once. Give every "


@pytest.mark.parametrize(
    ("ask", "kind", "words"),
    [
        (
            after([0, 1], OSError(errno.ENOSPC, "No space left on device at b")),
            UsageError,
            CANNOT.format("{at}", "No space left on device at b", "Free some space") + "--resume.",
        ),
        (
            after([0], OSError("it went away")),
            UsageError,
            CANNOT.format("{at}", "it went away", "Make sure that it can be written to")
            + "--resume.",
        ),
        (
            lambda folder: [
                serve(folder, 0, 3),
                Unwritten(1, errno.EDQUOT, "Disk quota exceeded"),
                serve(folder, 2, 3),
            ],
            UsageError,
            CANNOT.format("{at}", "Disk quota exceeded on server 1", "Free some space")
            + "--resume.",
        ),
        (after([0, 2], PeerError("server 1 is gone.")), PeerError, "server 1 is gone."),
        (after([0, 1, 2], KeyboardInterrupt("now")), KeyboardInterrupt, "now"),
        (
            servers(3, []),
            UsageError,
            "no server has written a part of the checkpoint; expected at ",
        ),
        (servers(3, [0, 2]), UsageError, WRONG.format("0, 2", 1) + "writer a number of its own."),
        (servers(3, [0, 1]), UsageError, "the pieces of 'model.head.table.weight' "),
        (servers(3, [0, 1, 1, 2]), UsageError, WRONG.format("0, 1, 1, 2", 3)),
    ],
    ids=["full", "no number", "answered", "peer", "interrupt", "none", "gap", "short", "twice"],
)
def test_a_writer_that_fails_leaves_what_was_there(tmp_path, ask, kind, words):
    save(tmp_path, 3, step=1)
    told = refused(lambda: save(tmp_path, 3, step=2, elsewhere=ask), kind)
    assert told.startswith(words.format(at=tmp_path))
    assert is_untouched(tmp_path)
    save(tmp_path, 3, step=2)
    assert CheckpointFolder(tmp_path).steps() == [1, 2]


@pytest.mark.parametrize(
    ("place", "call"),
    [
        (Writer, "write_data"),
        (Writer, "finish"),
        (checkpoint, "seal"),
        (checkpoint_files, "sync"),
    ],
)
def test_a_disk_that_is_full_here_leaves_what_was_there(tmp_path, monkeypatch, place, call):
    save(tmp_path, 3, step=1)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def ask(folder):  # the servers' disks are not
        parts = servers(3)(folder)
        monkeypatch.setattr(place, call, full)
        return parts

    words = CANNOT.format(tmp_path, "No space left on device", "Free some space") + "--resume."
    assert refused(lambda: save(tmp_path, 3, step=2, elsewhere=ask)) == words
    monkeypatch.undo()
    assert is_untouched(tmp_path)


def test_servers_do_not_go_with_ranks_or_the_background(tmp_path):
    words = "what servers write is saved by one process that waits for them. Leave out `elsewhere` "
    assert refused(lambda: save(tmp_path, 2, background=True)) == words + "or `background`."
    assert os.listdir(tmp_path) == []


def test_servers_hold_all_there_is_if_need_be(tmp_path):
    path = CheckpointFolder(tmp_path).save(7, {}, state(2), elsewhere=servers(2))
    assert same(loaded(path), whole_tensors())
    assert not (path / "__2_0.distcp").exists()


@pytest.mark.slow
def test_servers_in_processes_of_their_own_write_and_one_of_them_finds_its_disk_full(tmp_path):
    with CONTEXT.Pool(3) as pool:

        def ask(most):
            return lambda folder: pool.starmap(
                serve, [(folder, n, 3, most if n == 1 else None) for n in range(3)], chunksize=1
            )

        path = save(tmp_path, 3, step=1, elsewhere=ask(None))
        assert same(loaded(path), whole_tensors() | dense_tensors())
        told = refused(lambda: save(tmp_path, 3, step=2, elsewhere=ask(1_000)))
    words = CANNOT.format(tmp_path, "File too large on server 1", "Free some space") + "--resume."
    assert told == words
    assert is_untouched(tmp_path)


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def save_and_die(at: Path, place: str) -> None:
    """Save step 2, and be gone once the servers have written: before or after it is joined."""
    if place == "join":
        Writer.finish = die
    elif place == "seal":
        checkpoint.seal = die
    else:
        CheckpointFolder._put_in_place = die
    save(at, 3, step=2)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["join", "seal", "rename"])
def test_killed_after_the_servers_have_written_it_leaves_the_old_checkpoint(tmp_path, place):
    save(tmp_path, 3, step=1)
    process = CONTEXT.Process(target=save_and_die, args=(tmp_path, place))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    folder = CheckpointFolder(tmp_path)
    (left,) = [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert (left / "__2_0.distcp").exists()
    assert (left / ".metadata").exists() == (place != "join")
    assert (left / "state.json").exists() == (place == "rename")
    assert folder.steps() == [1]
    assert same(loaded(tmp_path / "step-00000001"), whole_tensors() | dense_tensors())
    save(tmp_path, 3, step=3)
    assert sorted(os.listdir(tmp_path)) == ["step-00000001", "step-00000003"]
