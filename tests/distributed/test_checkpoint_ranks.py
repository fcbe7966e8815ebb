"""Checkpoints of several ranks, loaded by any other number of ranks bit by bit."""

import errno
import json
import os
import resource
import signal
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from oracle.stored_rows import (
    HEAD,
    NUMBERS,
    STATE,
    C,
    dense_tensors,
    flip,
    held_by,
    part_of,
    refused,
    same,
    table_tensors,
    wanted,
)
from ranks import run_ranks

from tapas import DataError, UsageError
from tapas.checkpoints import files as checkpoint_files
from tapas.checkpoints import folder as checkpoint
from tapas.checkpoints import rows as checkpoint_rows
from tapas.checkpoints.folder import CheckpointFolder, Contents
from tapas.checkpoints.rows import TableRows
from tapas.distributed import peer_failure
from tapas.distributed.collectives import GroupRanks
from tapas.errors import PeerError
from tapas.tables.placement import Placement, RowRange

pytestmark = pytest.mark.slow
SAVERS, LOADERS = (1, 2, 3, 4), (1, 2, 3, 5)
TREE = "model.tree"  # complete on every rank, saved by one
TREE_ROWS = TableRows(RowRange.all_by_id(2), {"weight": torch.eye(2)})


def held(ranks: GroupRanks) -> Contents:
    mine = held_by(ranks.rank, ranks.size)
    return replace(mine, tables={**mine.tables, TREE: TREE_ROWS})


def is_right(found: dict[str, torch.Tensor], ranges: dict[str, RowRange]) -> bool:
    """The rows of tables in `ranges`, all rows of other tables, and everything else."""
    tables = {
        name: part_of(tensor, ranges[prefix]) if (prefix := name.rpartition(".")[0]) in ranges
        else tensor
        for name, tensor in table_tensors().items()
    }  # fmt: skip
    return same(found, tables | dense_tensors() | {f"{TREE}.weight": torch.eye(2)})


@contextmanager
def limited(most: int):
    """A context in which no file may be larger than `size` bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


def work(world: GroupRanks, root: Path) -> dict[str, str]:
    checkpoint_rows.READ_BYTES = 60  # so that rows are read in several blocks
    for members in [*(range(m) for m in SAVERS), (1, 3)]:
        group = dist.new_group(list(members))
        if world.rank in members:
            ranks = GroupRanks(group)
            folder = CheckpointFolder(root / f"by-{'-'.join(map(str, members))}")
            path = folder.save(400, held(ranks), STATE, best=True, ranks=ranks)
            assert path == folder.folder / "step-00000400"
            assert ranks.last_checkpoint == f"step 400 in {folder.folder}"
            assert folder.steps() == [400] == [folder.best()]
            ranges = wanted(ranks.rank, ranks.size)
            assert is_right(folder.load(ranges=ranges, ranks=ranks).tensors, ranges)
    return faults(world, root / "faults")


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def faults(ranks: GroupRanks, at: Path) -> dict[str, str]:
    folder = CheckpointFolder(at)
    mine = held(ranks)
    folder.save(1, mine, STATE, ranks=ranks)
    large = TableRows(RowRange(Placement(36_000, 4), ranks.rank), {"weight": torch.zeros(9_000, 1)})
    big = replace(mine, tables={**mine.tables, "big": large})
    errors = {}
    with limited(20_000 if ranks.rank == 2 else resource.RLIM_INFINITY):
        errors["full"] = refused(lambda: folder.save(2, big, STATE, ranks=ranks))
        ranks.gather_numbers("looked")
        assert os.listdir(at) == ["step-00000001"]
        ranks.gather_numbers("seen")
    for rank, module, call in ((1, checkpoint_files, "checksum"), (0, checkpoint, "write_state")):
        with pytest.MonkeyPatch.context() as patched:
            if ranks.rank == rank:
                patched.setattr(module, call, full)
            errors[call] = refused(lambda: folder.save(2, mine, STATE, ranks=ranks))
    kind = UsageError if ranks.rank == 1 else PeerError
    state = {"bad": torch.ones(1)} if ranks.rank == 1 else STATE
    errors["refused"] = refused(lambda: folder.save(2, mine, state, ranks=ranks), kind)
    step = 3 + ranks.rank
    errors["steps"] = refused(lambda: folder.save(step, mine, STATE, ranks=ranks))
    again = held_by(ranks.rank % 3, ranks.size)  # as if rank 3 were rank 0
    short = replace(mine, tables=again.tables)
    errors["gap"] = refused(lambda: folder.save(2, short, STATE, ranks=ranks))
    ranks.gather_numbers("looked")
    assert os.listdir(at) == ["step-00000001"]
    ranks.gather_numbers("seen")
    folder.save(2, mine, STATE, ranks=ranks)
    damaged = at / "step-00000002" / "rows-2.safetensors"
    if ranks.rank == 0:
        flip(damaged)
    ranks.gather_numbers("damaged")
    errors["damaged"] = refused(lambda: folder.load(ranks=ranks), DataError)
    assert is_right(folder.load(1, ranks=ranks).tensors, {})
    return errors


def vanish(ranks: GroupRanks, root: Path, victim: int) -> None:
    """Save step 1, then kill a rank while step 2 is saved; the other records its error."""
    peer_failure.GRACE_SECONDS = 0.5
    folder = CheckpointFolder(root)
    mine = held(ranks)
    folder.save(1, mine, STATE, ranks=ranks)

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    if ranks.rank == victim == 0:
        os.rename = die  # all is written and sealed, but it has no name yet
    elif ranks.rank == victim:
        checkpoint_rows.write_file = die
    words = refused(lambda: folder.save(2, mine, STATE, ranks=ranks), PeerError)
    (root.parent / f"{root.name}-{ranks.rank}.txt").write_text(words)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    return root, run_ranks(4, work, root)


@pytest.mark.parametrize("by", ["0", "0-1", "0-1-2", "0-1-2-3", "1-3"])
def test_a_checkpoint_of_any_number_of_ranks_is_loaded_by_any_other(saved, by):
    folder = CheckpointFolder(saved[0] / f"by-{by}")
    assert is_right(folder.load().tensors, {})
    for order, num_shards in [*(("same", n) for n in LOADERS), ("other", 2)]:
        for number in range(num_shards):
            ranges = wanted(number, num_shards, order=order)
            assert is_right(folder.load(ranges=ranges).tensors, ranges)
    record = json.loads((folder.find()[1] / "state.json").read_text())
    assert (record["processes"], record["numbers"]) == (len(by.split("-")), NUMBERS)
    assert record["tables"][TREE]["ranges"] == [["rows-0.safetensors", 0, 2]]


def test_the_error_of_one_rank_is_raised_on_all(saved):
    root, answers = saved
    full_disk = (
        f"cannot save checkpoint step 2 into {root / 'faults'}: {{}}. "
        "Checkpoint step 1 is valid. Free some space and continue with --resume."
    )
    errors = {
        "full": full_disk.format("File too large on rank 2"),
        "checksum": full_disk.format("No space left on device on rank 1"),
        "write_state": full_disk.format("No space left on device on rank 0"),
        "steps": "the ranks would save different steps: 3, 4, 5, 6 (by rank). All must save the "
        "same step, in a folder that all of them share.",
        "gap": f"two processes have written rows 0 to 5 of {HEAD}; expected each of its {C} rows "
        "once.",
        "damaged": f"{root / 'faults' / 'step-00000002' / 'rows-2.safetensors'} is damaged: its "
        "checksum differs from the one it was saved with. Step 1 is valid: use it with --step 1.",
    }
    refusals = [answer.pop("refused") for answer in answers]
    assert answers == [errors] * 4
    assert refusals.pop(1).startswith("state.bad is of type Tensor; expected numbers")
    assert refusals == 3 * [
        "rank 1 raised an error in `save a checkpoint`; see the message there. Nothing was changed "
        "here."
    ]


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
    assert is_right(folder.load().tensors, {})
    folder.save(3, held_by(0, 1), STATE)  # removes the incomplete checkpoint
    assert sorted(os.listdir(root)) == ["step-00000001", "step-00000003"]
