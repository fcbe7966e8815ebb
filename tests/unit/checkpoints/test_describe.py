"""Finding, describing and growing checkpoints."""

import errno
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from oracle.stored_rows import refused, same

from tapas import DataError, LocalTable, UsageError
from tapas.checkpoints import grow as growing
from tapas.checkpoints.describe import describe, find_checkpoint
from tapas.checkpoints.folder import CheckpointFolder
from tapas.checkpoints.grow import NewRows, grow
from tapas.checkpoints.model import (
    contents_of,
    load_checkpoint,
    load_model_state,
    save_checkpoint,
)
from tapas.checkpoints.rows import TableRows, write_rows
from tapas.optim import LazyAdam, RowwiseAdagrad
from tapas.rng import stream
from tapas.tables.placement import Placement, RowRange

C, D = 23, 3


class Model(torch.nn.Module):
    """The two tables of a run."""

    def __init__(self, num_classes=C, *, moved=True):
        super().__init__()
        self.head = torch.nn.Module()
        self.head.table = LocalTable(
            num_classes, D, row_optimizer=RowwiseAdagrad.fused(lr=0.5), seed=4, placement="random"
        )
        self.input_table = LocalTable(
            num_classes, D, row_optimizer=LazyAdam.fused(), dtype=torch.bfloat16, bias=False,
            seed=5, placement="contiguous",
        )  # fmt: skip
        for table in (self.head.table, self.input_table) if moved else ():
            draws = stream(0, "move")
            grad = torch.randn(C, table.dim, generator=draws)
            table.update(torch.arange(C), grad, torch.randn(C, generator=draws))


def save(model: Model, folder: Path, step: int = 7) -> Path:
    return CheckpointFolder(folder).save(step, contents_of(model), {}, best=True)


@pytest.fixture
def single(tmp_path):
    return save(Model(), tmp_path / "checkpoints")


def tensors_of(folder: Path, **options) -> dict[str, torch.Tensor]:
    there = CheckpointFolder(folder.parent)
    return there.load(int(folder.name.removeprefix("step-")), **options).tensors


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_grown_checkpoint_has_the_old_rows_and_those_of_a_new_table(single, tmp_path):
    old = tensors_of(single)
    used = grow(single, out := tmp_path / "out" / "step-00000007", 41)
    assert used == {"sum": 1e-6, "mean": 0.0, "square": 0.0}
    grown, fresh = tensors_of(out), Model(41, moved=False).state_dict()
    assert grown.keys() == old.keys()
    for name, tensor in old.items():
        after, start = grown[name], fresh[name.removeprefix("model.")]
        assert after.shape == start.shape
        if after.shape == tensor.shape:
            assert torch.equal(after, tensor)
            continue
        assert torch.equal(after[:C], tensor), name
        if name == "model.head.table.bias":
            start = tensor.min().expand(41)
        assert torch.equal(after[C:], start[C:]), name
    again = Model(41, moved=False)
    load_model_state(again, CheckpointFolder(out.parent).load(7))
    assert torch.equal(again.head.table.weight, grown["model.head.table.weight"])
    assert again.head.table.num_updates == 1


def test_a_custom_loop_continues_with_more_classes(tmp_path):
    small, large = LocalTable(C, D, seed=4), LocalTable(41, D, seed=4)
    before, after = LazyAdam(small, lr=0.1), LazyAdam(large)
    small.lookup(torch.arange(5)).sum().backward()
    before.step()
    path = save_checkpoint(tmp_path / "old", 7, small, before, state={"mine": 1})
    grow(path, tmp_path / "new" / path.name, 41)
    assert load_checkpoint(tmp_path / "new", large, after) == (7, {"mine": 1})
    assert torch.equal(large.weight[:C], small.weight)
    assert after.param_groups[0]["lr"] == 0.1
    mean = after.state[large.gradients.anchor]["weight_mean"]
    assert torch.equal(mean[:C], before.state[small.gradients.anchor]["weight_mean"])
    assert mean[C:].abs().sum() == 0
    large.lookup(torch.arange(41)).sum().backward()
    after.step()
    assert large.num_updates == 2


def test_an_initial_value_may_be_given_and_must_be_if_unknown(single, tmp_path, monkeypatch):
    grow(single, out := tmp_path / "step-00000007", 30, NewRows(initial={"sum": 0.25}))
    assert tensors_of(out)["model.head.table.weight_sum"][C:].tolist() == [[0.25]] * 7
    monkeypatch.setattr(growing, "LazyAdam", RowwiseAdagrad)
    words = refused(lambda: grow(single, tmp_path / "b", 30))
    assert words == (
        "the row optimizer keeps 'mean' in model.input_table.weight_mean, whose initial value "
        "is unknown. Set it with --initial mean=VALUE."
    )


def test_a_path_may_be_a_run_its_checkpoints_or_a_step(tmp_path):
    for step in (5, 7):
        save(Model(), tmp_path / "run" / "checkpoints", step)
    at = tmp_path / "run"
    steps = [at / "checkpoints" / f"step-0000000{n}" for n in (5, 7)]
    for path in (at, at / "checkpoints", steps[1]):
        assert find_checkpoint(path) == steps[1]
    assert find_checkpoint(at, 5) == steps[0]
    assert refused(lambda: find_checkpoint(steps[0], 7)) == (
        f"{steps[0]} is the checkpoint of step 5, not of step 7."
    )
    assert refused(lambda: find_checkpoint(tmp_path)) == (
        f"{tmp_path} holds no checkpoint. Expected the folder of a run, its folder 'checkpoints', "
        "or one checkpoint in it."
    )


def test_checkpoints_that_cannot_grow_are_refused_before_anything_is_written(single, tmp_path):
    plain = CheckpointFolder(tmp_path / "plain").save(1, {"a": torch.ones(3)}, {})
    contents = contents_of(Model())
    tensors = {**contents.tensors, "model.head.count": torch.zeros(C)}
    beside = CheckpointFolder(tmp_path / "beside").save(1, replace(contents, tensors=tensors), {})
    damaged = save(Model(), tmp_path / "damaged")
    file = damaged / "rows-0.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    before = names(tmp_path)
    calls = {
        f"{tmp_path}/step-00000008 is named after step 8, but the checkpoint is of step 7. Name it "
        "step-00000007.": (single, "step-00000008", 30),
        f"{plain} has no class table that could grow.": (plain, "out", 30),
        f"{beside} also has model.head.count, which its method learns for each class besides the "
        "rows: such a checkpoint cannot grow. Train again with more classes.": (
            beside, "out", 30,
        ),
        f"{file} is damaged: its checksum differs from the one it was saved with.": (
            damaged, "out", 30,
        ),
    }  # fmt: skip
    for words, (source, out, size) in calls.items():
        kind = DataError if source is damaged else UsageError
        call = partial(grow, source, tmp_path / out, size)
        assert refused(call, kind) == words
    assert names(tmp_path) == before
    found = describe(damaged)
    assert (found["valid"], found["problem"]) == (False, words)


@pytest.mark.parametrize("call", ["write_file", "write_state"])
def test_a_full_disk_leaves_nothing_behind(single, tmp_path, monkeypatch, call):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(growing, call, full)
    out = tmp_path / "out"
    assert refused(lambda: grow(single, out, 30)) == (
        f"cannot write {out}: No space left on device. Free some space; nothing unfinished was "
        "left behind."
    )
    assert names(tmp_path) == ["checkpoints"]


def test_a_checkpoint_of_several_processes_grows_in_the_same_way(single, tmp_path):
    """Rows in another order, in two files."""
    saved = contents_of(Model())

    def write(folder: Path):
        return [write_rows(folder, number, parts(number)) for number in range(2)]

    def parts(number: int) -> dict[str, TableRows]:
        order = Placement(C, 2, seed=9)
        return {
            name: TableRows(
                RowRange(order, number),
                {k: t[order.ids_of(number)] if len(t) else t for k, t in table.tensors.items()},
            )
            for name, table in saved.tables.items()
        }

    spread = CheckpointFolder(tmp_path / "two").save(
        7, replace(saved, tables={}), {}, servers=write
    )
    assert describe(spread)["processes"] == 2
    grow(spread, out := tmp_path / "grown" / "step-00000007", 30)
    grow(single, other := tmp_path / "other" / "step-00000007", 30)
    assert same(tensors_of(out), tensors_of(other))
