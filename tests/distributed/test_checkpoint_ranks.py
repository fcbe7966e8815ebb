"""Checkpoints of many ranks: loaded by any other number of them, bit for bit, whatever happens."""

import errno
import json
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from tapas import DataError, UsageError
from tapas.checkpoints import files as checkpoint_files
from tapas.checkpoints import folder as checkpoint
from tapas.checkpoints import rows as checkpoint_rows
from tapas.checkpoints.folder import CheckpointFolder, Contents
from tapas.checkpoints.rows import TableRows
from tapas.distributed import peer_failure as blame
from tapas.distributed.collectives import GroupRanks
from tapas.errors import PeerError
from tapas.rng import stream
from tapas.tables.placement import Placement, RowRange

pytestmark = pytest.mark.slow
C, D, SAVERS, LOADERS = 31, 3, (1, 2, 3, 4), (1, 2, 3, 5)
TABLE, OTHER, WHOLE = "model.head.table", "model.own_inputs", "model.tree"
NUMBERS = {TABLE: {"num_updates": 7, "seed": 5}, OTHER: {"num_updates": 7, "seed": 6}}
STATE = {"at": "here"}


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
    tree = {f"{WHOLE}.weight": torch.randn(4, 2, generator=draws)}  # whole on every rank
    dense = {"model.encoder.w": torch.randn(4, 5, generator=draws), "count": torch.tensor(3)}
    return rows | empty | tree | dense


def orders(num_shards: int, *, swapped: bool = False) -> dict[str, Placement]:
    kinds = {TABLE: (5, "random"), OTHER: (6, "contiguous")}
    if swapped:  # no table is wanted in the order in which it was saved
        kinds = {TABLE: (8, "random"), OTHER: (6, "random")}
    return {k: Placement(C, num_shards, seed=s, kind=kind) for k, (s, kind) in kinds.items()}


def tensors_of(prefix: str) -> dict[str, torch.Tensor]:
    """The tensors of one table, by id."""
    whole = whole_tensors()
    return {k.removeprefix(f"{prefix}."): v for k, v in whole.items() if k.startswith(prefix)}


def held_by(rank: int, num_ranks: int) -> Contents:
    """What a rank has to save: its rows, and all that is the same on every rank."""
    tables = {WHOLE: TableRows(RowRange.all_by_id(4), tensors_of(WHOLE))}
    for prefix, order in orders(num_ranks).items():
        mine = {k: t[order.ids_of(rank)] if len(t) else t for k, t in tensors_of(prefix).items()}
        tables[prefix] = TableRows(RowRange(order, rank), mine)
    known = (TABLE, OTHER, WHOLE)
    dense = {k: t for k, t in whole_tensors().items() if not k.startswith(known)}
    return Contents(dense, tables, NUMBERS)


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
        ranges = {prefix: RowRange(each, number) for prefix, each in order.items()}
        is_shard(folder.load(ranges=ranges).tensors, order, number)


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


def work(world: GroupRanks, root: Path) -> dict[str, str]:
    checkpoint_rows.READ_BYTES = 60  # so that even these rows are read in several blocks
    for members in [*(range(m) for m in SAVERS), (1, 3)]:
        group = dist.new_group(list(members))
        if world.rank in members:
            ranks = GroupRanks(group)
            folder = CheckpointFolder(root / f"by-{'-'.join(map(str, members))}")
            held = held_by(ranks.rank, ranks.size)
            path = folder.save(400, held, STATE, best=True, ranks=ranks)
            assert path == folder.folder / "step-00000400"
            assert ranks.last_checkpoint == f"step 400 in {folder.folder}"
            assert folder.steps() == [400] == [folder.best()]
            order = orders(ranks.size)
            ranges = {k: RowRange(each, ranks.rank) for k, each in order.items()}
            is_shard(folder.load(ranges=ranges, ranks=ranks).tensors, order, ranks.rank)
    return faults(world, root / "faults")


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def faults(ranks: GroupRanks, at: Path) -> dict[str, str]:
    folder = CheckpointFolder(at)
    held = held_by(ranks.rank, ranks.size)
    folder.save(1, held, STATE, ranks=ranks)
    large = TableRows(RowRange(Placement(36_000, 4), ranks.rank), {"weight": torch.zeros(9_000, 1)})
    big = replace(held, tables={**held.tables, "big": large})
    told = {}
    with limited(20_000 if ranks.rank == 2 else resource.RLIM_INFINITY):
        told["full"] = refused(lambda: folder.save(2, big, STATE, ranks=ranks))
        ranks.gather_numbers("looked")
        assert os.listdir(at) == ["step-00000001"]
        ranks.gather_numbers("seen")
    for rank, module, call in ((1, checkpoint_files, "fingerprint"), (0, checkpoint, "seal")):
        with pytest.MonkeyPatch.context() as patched:
            if ranks.rank == rank:
                patched.setattr(module, call, full)
            told[call] = refused(lambda: folder.save(2, held, STATE, ranks=ranks))
    kind = UsageError if ranks.rank == 1 else PeerError
    state = {"bad": torch.ones(1)} if ranks.rank == 1 else STATE
    told["refused"] = refused(lambda: folder.save(2, held, state, ranks=ranks), kind)
    step = 3 + ranks.rank
    told["steps"] = refused(lambda: folder.save(step, held, STATE, ranks=ranks))
    again = held_by(ranks.rank % 3, ranks.size)  # as if rank 3 were rank 0
    short = replace(held, tables=again.tables)
    told["gap"] = refused(lambda: folder.save(2, short, STATE, ranks=ranks))
    ranks.gather_numbers("looked")
    assert os.listdir(at) == ["step-00000001"]
    ranks.gather_numbers("seen")
    folder.save(2, held, STATE, ranks=ranks)
    damaged = at / "step-00000002" / "rows-2.safetensors"
    if ranks.rank == 0:
        flip(damaged)
    ranks.gather_numbers("damaged")
    told["damaged"] = refused(lambda: folder.load(ranks=ranks), DataError)
    is_whole(folder.load(1, ranks=ranks).tensors)
    return told


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def vanish(ranks: GroupRanks, root: Path, victim: int) -> None:
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
        checkpoint_rows.write_file = die
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


def test_the_record_vouches_for_every_file(saved):
    folder = saved[0] / "by-0-1-2" / "step-00000400"
    record = json.loads((folder / "state.json").read_text())
    files = record["files"]
    assert list(files) == [*(f"rows-{n}.safetensors" for n in range(3)), "dense.safetensors"]
    assert files.keys() == {p.name for p in folder.iterdir()} - {"state.json"}
    assert files == {name: checkpoint_files.fingerprint(folder / name) for name in files}
    assert (record["processes"], record["numbers"], record["state"]) == (3, NUMBERS, STATE)
    assert [file for file, _, _ in record["tables"][TABLE]["ranges"]] == list(files)[:3]
    assert record["tables"][WHOLE]["ranges"] == [["rows-0.safetensors", 0, 4]]


def test_a_full_disk_of_one_rank_is_told_by_all_of_them(saved):
    root, answers = saved
    words = (
        f"cannot save checkpoint step 2 into {root / 'faults'}: {{}}. "
        "Checkpoint step 1 is whole. Free some space and go on with --resume."
    )
    for told in answers:
        assert told["full"] == words.format("File too large on rank 2")
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
        assert told["gap"] == (
            f"two processes have written the rows 0 to 7 of {TABLE}, in its stored order of 31."
        )


def test_a_damaged_file_is_found_by_the_rank_that_checks_it_and_told_by_all(saved):
    root, answers = saved
    for told in answers:
        assert told["damaged"] == (
            f"{root / 'faults' / 'step-00000002' / 'rows-2.safetensors'} is damaged: its checksum "
            "is not the one it was saved with. Step 1 is whole: take it with --step 1."
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
    folder.save(3, held_by(0, 1), STATE)  # what was left half done goes, at the latest now
    assert sorted(os.listdir(root)) == ["step-00000001", "step-00000003"]
