"""Checkpoints of many ranks: loaded by any other number of them, bit for bit, whatever happens."""

import errno
import json
import os
import resource
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from tapas import DataError, UsageError
from tapas.checkpoints import files as checkpoint_files
from tapas.checkpoints import folder as checkpoint
from tapas.checkpoints import piece_plans, pieces
from tapas.checkpoints import saving as checkpoint_saving
from tapas.checkpoints.folder import CheckpointFolder
from tapas.checkpoints.pieces import (
    Piece,
    group_apart,
    load_pieces,
    save_pieces_later,
    stored_shapes,
)
from tapas.checkpoints.rows import ShardRows
from tapas.distributed import peer_failure as blame
from tapas.distributed.collectives import Ranks
from tapas.errors import PeerError
from tapas.rng import stream
from tapas.tables.placement import Placement

pytestmark = pytest.mark.slow
C, D, SAVERS, LOADERS = 31, 3, (1, 2, 3, 4), (1, 2, 3, 5)
TABLE, OTHER = "model.head.table", "model.own_inputs"
EXTRA = {"num_updates": 7, "seed": 5, "num_shards": 2, "placement": "random"}
STATE = {
    "extra": {
        "head.table.numbers": EXTRA,
        "own_inputs.numbers": EXTRA | {"seed": 6, "placement": "contiguous"},
        "head.numbers": {"step": 9},
    }
}


def whole_tensors() -> dict[str, torch.Tensor]:
    """Two tables by id, one of them without biases, and dense tensors."""
    draws = stream(0, "tensors")
    rows = {
        f"{TABLE}.weight": torch.randn(C, D, generator=draws),
        f"{TABLE}.bias": torch.randn(C, generator=draws).bfloat16(),
        f"{TABLE}.weight_sum": torch.rand(C, 1, generator=draws),
        f"{OTHER}.weight": torch.randn(C, D, generator=draws).bfloat16(),
        f"{OTHER}.weight_mean": torch.randn(C, D, generator=draws),
    }
    empty = {f"{OTHER}.bias": torch.zeros(0), f"{OTHER}.bias_mean": torch.zeros(0, 1)}
    dense = {"model.encoder.w": torch.randn(4, 5, generator=draws), "count": torch.tensor(3)}
    return rows | empty | dense


def orders(num_shards: int, *, swapped: bool = False) -> dict[str, Placement]:
    kinds = {TABLE: (5, "random"), OTHER: (6, "contiguous")}
    if swapped:  # no table is wanted in the order in which it was saved
        kinds = {TABLE: (8, "random"), OTHER: (6, "random")}
    return {k: Placement(C, num_shards, seed=s, kind=kind) for k, (s, kind) in kinds.items()}


def held_by(rank: int, num_ranks: int) -> dict[str, torch.Tensor | Piece]:
    """What a rank saves: its rows in pieces, all of the rest."""
    held = {}
    for name, tensor in whole_tensors().items():
        prefix = name.rpartition(".")[0]
        held[name] = tensor
        if prefix in (TABLE, OTHER) and len(tensor):
            order = orders(num_ranks)[prefix]
            held[name] = Piece(tensor[order.ids_of(rank)], order.start(rank), C)
        elif prefix in (TABLE, OTHER):
            held[name] = Piece(tensor, 0, 0)
    return held


def is_whole(found: dict[str, torch.Tensor]) -> None:
    want = whole_tensors()
    assert found.keys() == want.keys()
    for name, tensor in want.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def is_shard(found: dict[str, torch.Tensor], order: dict[str, Placement], number: int) -> None:
    for name, tensor in whole_tensors().items():
        prefix = name.rpartition(".")[0]
        want = tensor
        if prefix in order and len(tensor):
            want = tensor[order[prefix].ids_of(number)]
        assert torch.equal(found[name], want), name


def load_shards(folder: CheckpointFolder, num_shards: int, *, swapped: bool) -> None:
    order = orders(num_shards, swapped=swapped)
    for number in range(num_shards):
        shards = {prefix: ShardRows(each, number) for prefix, each in order.items()}
        is_shard(folder.load(shards=shards).tensors, order, number)


def refused(call, kind=UsageError) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


class limited:  # noqa: N801
    """No file may be larger than this while in here."""

    def __init__(self, most: int):
        self.most = most

    def __enter__(self):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.most, resource.RLIM_INFINITY))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


def work(world: Ranks, root: Path) -> dict[str, str]:
    pieces.STRETCH_BYTES = 60  # so that even these pieces are stored in several stretches
    for members in [*(range(m) for m in SAVERS), (1, 3)]:
        group = dist.new_group(list(members))
        if world.rank in members:
            ranks = Ranks(group)
            folder = CheckpointFolder(root / f"by-{'-'.join(map(str, members))}")
            held = held_by(ranks.rank, ranks.size)
            path = folder.save(400, held, STATE, best=True, ranks=ranks)
            assert path == folder.folder / "step-00000400"
            assert ranks.last_checkpoint == f"step 400 in {folder.folder}"
            assert folder.steps() == [400] == [folder.best()]
            order = orders(ranks.size)
            shards = {k: ShardRows(each, ranks.rank) for k, each in order.items()}
            is_shard(folder.load(shards=shards, ranks=ranks).tensors, order, ranks.rank)
    later(world, root)
    return faults(world, root / "faults")


def later(ranks: Ranks, root: Path) -> None:
    apart, plain = group_apart(ranks.group), root / "plain"
    if ranks.rank == 0:
        plain.mkdir()
    ranks.announce("made")
    row = torch.full((2, 3), float(ranks.rank))
    handle = save_pieces_later(plain, {"row": Piece(row, 2 * ranks.rank, 8)}, group=apart)
    row.fill_(-1)
    for _ in range(50):  # meetings of training go on meanwhile
        ranks.announce("train", ranks.rank)
    handle.finish()
    assert handle.done()
    found = torch.empty(8, 3)
    load_pieces(plain, {"row": found})
    assert found[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]

    folder = CheckpointFolder(root / "background", keep=1)
    held = held_by(ranks.rank, ranks.size)
    for step in (1, 2):
        folder.save(step, held, STATE, ranks=ranks, background=True)
        assert step not in folder.steps()
        for value in held.values():
            (value.tensor if isinstance(value, Piece) else value).zero_()
        held = held_by(ranks.rank, ranks.size)
    assert folder.steps() == [1]
    folder.finish()
    folder.finish()
    assert ranks.last_checkpoint == f"step 2 in {folder.folder}"
    is_whole(folder.load(2, ranks=ranks).tensors)


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def faults(ranks: Ranks, at: Path) -> dict[str, str]:
    folder = CheckpointFolder(at)
    held = held_by(ranks.rank, ranks.size)
    folder.save(1, held, STATE, ranks=ranks)
    big = held | {"big": Piece(torch.zeros(9_000), 9_000 * ranks.rank, 36_000)}
    told = {}
    with limited(20_000 if ranks.rank == 2 else resource.RLIM_INFINITY):
        told["full"] = refused(lambda: folder.save(2, big, STATE, ranks=ranks))
        ranks.announce("looked")
        assert os.listdir(at) == ["step-00000001"]
        ranks.announce("seen")
        folder.save(2, big, STATE, ranks=ranks, background=True)
        told["full later"] = refused(folder.finish)
    for rank, module, call in ((1, checkpoint_saving, "fingerprint"), (0, checkpoint, "seal")):
        with pytest.MonkeyPatch.context() as patched:
            if ranks.rank == rank:
                patched.setattr(module, call, full)
            told[call] = refused(lambda: folder.save(2, held, STATE, ranks=ranks))
    kind = UsageError if ranks.rank == 1 else PeerError
    state = {"bad": torch.ones(1)} if ranks.rank == 1 else STATE
    told["refused"] = refused(lambda: folder.save(2, held, state, ranks=ranks), kind)
    step = 3 + ranks.rank
    told["steps"] = refused(lambda: folder.save(step, held, STATE, ranks=ranks))
    short = held | {f"{TABLE}.bias": Piece(torch.zeros(1), ranks.rank, C)}
    told["gap"] = refused(lambda: folder.save(2, short, STATE, ranks=ranks))
    ranks.announce("looked")
    assert os.listdir(at) == ["step-00000001"]
    ranks.announce("seen")
    folder.save(2, held, STATE, ranks=ranks)
    damaged = at / "step-00000002" / "__2_0.distcp"
    if ranks.rank == 0:
        flip(damaged)
    ranks.announce("damaged")
    told["damaged"] = refused(lambda: folder.load(ranks=ranks), DataError)
    is_whole(folder.load(1, ranks=ranks).tensors)
    return told


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def vanish(ranks: Ranks, root: Path, victim: int) -> None:
    """Save step 1, then lose a rank in the middle of step 2; the other writes down what it sees."""
    blame.GRACE_SECONDS = 0.5
    folder = CheckpointFolder(root)
    held = held_by(ranks.rank, ranks.size)
    folder.save(1, held, STATE, ranks=ranks)

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    if ranks.rank == victim == 0:
        os.rename = die  # all is written and sealed, but it has no name yet
    elif ranks.rank == victim:
        piece_plans.Writer.write_data = die
    words = refused(lambda: folder.save(2, held, STATE, ranks=ranks), PeerError)
    (root.parent / f"{root.name}-{ranks.rank}.txt").write_text(words)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    return root, run_ranks(4, work, root)


@pytest.mark.parametrize("by", ["0", "0-1", "0-1-2", "0-1-2-3", "1-3"])
def test_what_any_number_of_ranks_saved_is_loaded_by_any_other(saved, by):
    folder = CheckpointFolder(saved[0] / f"by-{by}")
    is_whole(folder.load().tensors)
    for num_shards in LOADERS:
        load_shards(folder, num_shards, swapped=False)
    load_shards(folder, 2, swapped=True)


def test_the_record_says_who_saved_what_and_vouches_for_every_file(saved):
    folder = saved[0] / "by-0-1-2" / "step-00000400"
    record = json.loads((folder / "state.json").read_text())
    files = record.pop("files")
    assert files.keys() == {p.name for p in folder.iterdir()} - {"state.json"}
    assert files == {name: checkpoint_files.fingerprint(folder / name) for name in files}
    assert record == {
        "format": 2,
        "layout": "sharded",
        "ranks": 3,
        "pieces": sorted(name for name in whole_tensors() if name.startswith((TABLE, OTHER))),
        "tapas": checkpoint_files.__version__,
        "step": 400,
        "best": True,
        "state": STATE,
    }


def test_every_rank_writes_only_what_it_holds(saved):
    """A dense tensor is written once, and the pieces of a rank are in its own file."""
    shapes = stored_shapes(saved[0] / "by-0-1-2-3" / "step-00000400")
    want = {name: (tuple(t.shape), t.dtype) for name, t in whole_tensors().items()}
    assert {name: (each.shape, each.dtype) for name, each in shapes.items()} == want
    sizes = {
        by: sum(f.stat().st_size for f in (saved[0] / by / "step-00000400").glob("*.distcp"))
        for by in ("by-0", "by-0-1-2-3")
    }
    assert sizes["by-0-1-2-3"] < 1.5 * sizes["by-0"]


def test_a_full_disk_of_one_rank_is_told_by_all_of_them(saved):
    root, answers = saved
    words = (
        f"cannot save checkpoint step 2 into {root / 'faults'}: {{}}. "
        "Checkpoint step 1 is whole. Free some space and go on with --resume."
    )
    for told in answers:
        assert told["full"] == told["full later"] == words.format("File too large on rank 2")
        assert told["fingerprint"] == words.format("No space left on device on rank 1")
        assert told["seal"] == words.format("No space left on device on rank 0")


def test_a_rank_with_bad_input_is_named_by_the_others(saved):
    told = [answer["refused"] for answer in saved[1]]
    assert told.pop(1).startswith("state.bad is of type Tensor; expected numbers")
    assert told == 3 * [
        "rank 1 refused the input of `save a checkpoint`; the error there says why. Nothing was "
        "changed here."
    ]


def test_ranks_that_save_different_steps_or_not_all_rows_are_refused(saved):
    for told in saved[1]:
        assert told["steps"] == (
            "the ranks would save different steps: 3, 4, 5, 6, by rank. All must save the same "
            "one, in one folder that all of them see."
        )
        assert told["gap"] == f"the pieces of '{TABLE}.bias' make up 4 of 31 rows."


def test_a_damaged_file_is_found_by_the_rank_that_checks_it_and_told_by_all(saved):
    root, answers = saved
    for told in answers:
        assert told["damaged"] == (
            f"{root / 'faults' / 'step-00000002' / '__2_0.distcp'} is damaged: its checksum is not "
            "the one it was saved with. Step 1 is whole: take it with --step 1."
        )


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_while_saving_leaves_the_old_checkpoint(tmp_path, victim):
    root = tmp_path / "run"
    with pytest.raises(AssertionError, match=f"rank {victim} ended with -9"):
        run_ranks(2, vanish, root, victim)
    words = (tmp_path / f"run-{1 - victim}.txt").read_text()
    assert words.startswith(f"rank {victim} died or hangs: no answer"), words
    assert words.endswith(f"The last checkpoint is step 1 in {root}."), words
    folder = CheckpointFolder(root)
    assert folder.steps() == [1]
    is_whole(folder.load().tensors)
    folder.save(3, whole_tensors(), STATE)  # what was left half done goes, at the latest now
    assert sorted(os.listdir(root)) == ["step-00000001", "step-00000003"]
