"""One checkpoint made into another: bit for bit, more classes, and nothing half done."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from tapas import DataError, LocalTable, UsageError
from tapas.checkpoints import describe as resharding
from tapas.checkpoints import grow as growing
from tapas.checkpoints import pieces
from tapas.checkpoints import rows as checkpoint_rows
from tapas.checkpoints.describe import describe, find_checkpoint, merge, reshard
from tapas.checkpoints.folder import CheckpointFolder
from tapas.checkpoints.grow import grow
from tapas.checkpoints.model import load_model_state, model_state
from tapas.checkpoints.rows import ShardRows
from tapas.optim import LazyAdam, RowwiseAdagrad
from tapas.rng import stream
from tapas.tables.placement import Placement
from tapas.training.copy_part import Repeats

C, D = 23, 3


class Model(torch.nn.Module):
    """Three tables as a run has them; `seed` 4 says nothing about the order of the others."""

    def __init__(self, num_classes=C, *, moved=True):
        super().__init__()
        self.head = torch.nn.Module()
        self.head.table = LocalTable(
            num_classes, D, row_optimizer=RowwiseAdagrad.fused(lr=0.5), seed=4, placement="random"
        )
        self.own_inputs = LocalTable(
            num_classes, D, row_optimizer=LazyAdam.fused(), dtype=torch.bfloat16, bias=False,
            seed=5, placement="contiguous",
        )  # fmt: skip
        self.repeats = Repeats(
            num_classes, D, history=4, row_optimizer=RowwiseAdagrad.fused(), seed=6
        )
        for table in (self.head.table, self.own_inputs, self.repeats.rate) if moved else ():
            draws = stream(0, "move")
            grad = torch.randn(C, table.dim, generator=draws)
            table.update(torch.arange(C), grad, torch.randn(C, generator=draws))


def save(model: Model, folder: Path, step: int = 7) -> Path:
    tensors, extra = model_state(model)
    return CheckpointFolder(folder).save(step, tensors, {"extra": extra}, best=True)


@pytest.fixture
def single(tmp_path):
    return save(Model(), tmp_path / "checkpoints")


def tensors_of(folder: Path, **options) -> dict[str, torch.Tensor]:
    there = CheckpointFolder(folder.parent)
    return there.load(int(folder.name.removeprefix("step-")), **options).tensors


def refused(call, kind=UsageError) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[k], other[k]) and one[k].dtype == other[k].dtype for k in one
    )


@pytest.mark.parametrize("num_ranks", [1, 2, 5, C])
def test_resharded_and_merged_it_is_the_same_file(single, tmp_path, num_ranks):
    there, back = tmp_path / "there" / "step-00000007", tmp_path / "back"
    reshard(single, there, num_ranks)
    merge(there, back)
    name = "tensors.safetensors"
    assert (back / name).read_bytes() == (single / name).read_bytes()
    assert len(list(there.glob("*.distcp"))) == num_ranks
    extra = json.loads((back / "state.json").read_text())["state"]["extra"]
    assert extra["own_inputs.numbers"]["num_shards"] == num_ranks
    assert extra["own_inputs.numbers"]["placement"] == "contiguous"


@pytest.mark.parametrize("stored", ["single", "sharded"])
@pytest.mark.parametrize("kind", ["random", "contiguous"])
@pytest.mark.parametrize("seed", [4, 9])
def test_any_shard_is_read_from_any_layout(single, tmp_path, monkeypatch, stored, kind, seed):
    monkeypatch.setattr(checkpoint_rows, "READ_BYTES", 5 * 4 * D)  # rows in several stretches
    monkeypatch.setattr(pieces, "STRETCH_BYTES", 4 * 4 * D)
    source, whole = single, tensors_of(single)
    if stored == "sharded":
        reshard(single, source := tmp_path / "there" / "step-00000007", 3)
        assert same(tensors_of(source), whole)
    order = Placement(C, 4, seed=seed, kind=kind)
    for number in range(4):
        shards = {"model.head.table": ShardRows(order, number)}
        found = tensors_of(source, shards=shards)
        for name, tensor in whole.items():
            rows = name.startswith("model.head.table.") and len(tensor)
            want = tensor[order.ids_of(number)] if rows else tensor
            assert torch.equal(found[name], want), name


def test_a_shard_of_another_table_is_refused(single):
    def load(prefix, num_classes, number=0):
        shards = {prefix: ShardRows(Placement(num_classes, 2), number)}
        return refused(lambda: tensors_of(single, shards=shards))

    assert load("model.head.tabel", C) == (
        f"unknown table in {single} 'model.head.tabel'. Did you mean 'model.head.table'? Known: "
        "model.head.table, model.own_inputs, model.repeats.rate."
    )
    assert load("model.head.table", 30) == (
        f"model.head.table in {single} has 23 classes; asked for as one of 30. `tapas checkpoint "
        "grow` adds classes."
    )
    assert load("model.head.table", C, 2) == (
        "there is no shard 2 of model.head.table; expected 0 to 1."
    )


@pytest.mark.parametrize("layout", ["single", "sharded"])
def test_grown_it_is_old_rows_and_a_fresh_table(single, tmp_path, layout):
    source, old = single, tensors_of(single)
    if layout == "sharded":
        reshard(single, source := tmp_path / "there" / "step-00000007", 3)
    used = grow(source, out := tmp_path / "out" / "step-00000007", 41)
    assert used == {"sum": 1e-6, "mean": 0.0, "square": 0.0}
    assert describe(out)["layout"] == layout
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


def test_a_start_may_be_given_and_an_unknown_one_is_asked_for(single, tmp_path, monkeypatch):
    grow(single, out := tmp_path / "step-00000007", 30, {"sum": 0.25})
    assert tensors_of(out)["model.head.table.weight_sum"][C:].tolist() == [[0.25]] * 7
    monkeypatch.setattr(growing, "default_starts", lambda _: {"sum": 1.0})
    words = refused(lambda: grow(single, tmp_path / "b", 30))
    assert words == (
        "the row optimizer keeps 'mean' in model.own_inputs.weight_mean, and where that starts is "
        "not known. Say it with --initial mean=VALUE."
    )


def test_a_path_may_be_a_run_its_checkpoints_or_a_step(tmp_path):
    for step in (5, 7):
        save(Model(), tmp_path / "run" / "checkpoints", step)
    at = tmp_path / "run"
    steps = [at / "checkpoints" / f"step-0000000{n}" for n in (5, 7)]
    for path in (at, at / "checkpoints", steps[1]):
        assert find_checkpoint(path) == steps[1]
    assert find_checkpoint(at, 5) == steps[0]
    assert refused(lambda: find_checkpoint(at, 6)) == (
        f"no checkpoint of step 6 in {at / 'checkpoints'}. There are: 5, 7."
    )
    assert refused(lambda: find_checkpoint(steps[0], 7)) == (
        f"{steps[0]} is the checkpoint of step 5, not of step 7."
    )
    assert refused(lambda: find_checkpoint(tmp_path)) == (
        f"{tmp_path} holds no checkpoint. Expected the folder of a run, its 'checkpoints' or one "
        "step of them."
    )
    assert refused(lambda: find_checkpoint(tmp_path / "no")) == f"there is no folder {tmp_path}/no."


def test_bad_wishes_are_refused_before_anything_is_written(single, tmp_path):
    (tmp_path / "there").mkdir()
    before = names(tmp_path)
    out = tmp_path / "out"
    calls = {
        f"{tmp_path / 'there'} exists already. Choose another --out.": lambda: merge(
            single, tmp_path / "there"
        ),
        f"{tmp_path}/step-00000008 is named as step 8, but the checkpoint is of step 7. Call it "
        "step-00000007.": lambda: merge(single, tmp_path / "step-00000008"),
        f"{single} has 23 classes already; --to must be more, got 23.": lambda: grow(
            single, out, 23
        ),
        "cannot spread 23 classes over 24 shards. Use at most 23.": lambda: reshard(
            single, out, 24
        ),
        "--ranks must be at least 1, got 0.": lambda: reshard(single, out, 0),
    }
    for words, call in calls.items():
        assert refused(call) == words
    assert names(tmp_path) == before


def test_a_checkpoint_without_tables_is_merged_but_not_spread(tmp_path):
    plain = CheckpointFolder(tmp_path / "checkpoints").save(1, {"a": torch.ones(3)}, {})
    merge(plain, tmp_path / "out")
    words = f"{plain} has no class table: there is nothing to spread over ranks."
    assert refused(lambda: reshard(plain, tmp_path / "b", 2)) == words
    words = f"{plain} has no class table: there is nothing that could grow."
    assert refused(lambda: grow(plain, tmp_path / "b", 2)) == words


def test_a_damaged_source_is_refused_and_described_as_such(single, tmp_path):
    reshard(single, there := tmp_path / "there", 2)
    file = there / "__1_0.distcp"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    words = f"{file} is damaged: its checksum is not the one it was saved with."
    assert refused(lambda: merge(there, tmp_path / "out"), DataError) == words
    found = describe(there)
    assert (found["whole"], found["problem"]) == (False, words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("call", ["write_tensors", "seal", "_write_pieces"])
def test_a_full_disk_leaves_nothing_behind(single, tmp_path, monkeypatch, call):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(resharding, call, full)
    out = tmp_path / "out"
    make = (
        (lambda: reshard(single, out, 2)) if call == "_write_pieces" else lambda: merge(single, out)
    )
    assert refused(make) == (
        f"cannot write {out}: No space left on device. Free some space; nothing was left behind."
    )
    assert names(tmp_path) == ["checkpoints"]


def test_a_table_that_all_ranks_had_whole_stays_whole(single, tmp_path):
    """Its rows are by id, though its placement says otherwise."""
    reshard(single, there := tmp_path / "there" / "step-00000007", 3)
    record = json.loads((there / "state.json").read_text())
    contents = resharding.read_contents(there)
    spread = [name for name in record["pieces"] if "head" in name]
    contents.record["pieces"] = spread
    shutil.rmtree(there)
    resharding.write_out(there, contents, num_ranks=3)
    assert json.loads((there / "state.json").read_text())["pieces"] == spread
    assert same(tensors_of(there), tensors_of(single))
    grow(there, out := tmp_path / "grown" / "step-00000007", 30)
    grow(single, other := tmp_path / "other" / "step-00000007", 30)
    assert same(tensors_of(out), tensors_of(other))
