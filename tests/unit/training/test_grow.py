"""Growing a run: old rows stay bit for bit, new ones start as in a new run."""

from dataclasses import replace

import polars as pl
import pytest
import torch
from oracle.command_line import chain

from tapas import UsageError
from tapas.checkpoints import grow as growing
from tapas.data.source import LogSource
from tapas.data.splits import split_log
from tapas.heads import METHODS, FlatHead
from tapas.training import run as session
from tapas.training.build import bias_from_counts, build_training
from tapas.training.config import (
    HeadConfig,
    LoopConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from tapas.training.grow import check_can_grow, grow_run
from tapas.training.run_folder import open_run

OLD, NEW = 53, 70  # items of the chain; the second chain begins at the 10th item of the first


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weeks")
    week = [folder / "1.parquet", folder / "2.parquet"]
    chain(num_users=19, num_items=OLD, num_baskets=8).write_parquet(week[0])
    second = chain(num_users=31, num_items=NEW - 10, num_baskets=8, seed=4)
    second = second.with_columns(pl.col("item_id") + 10, pl.col("time") + 10**7)
    second.write_parquet(week[1])
    return [str(file) for file in week]


@pytest.fixture
def config(files):
    return TrainConfig(
        log=LogSource(files=(files[0],)),
        model=ModelConfig(dim=4, history=6, copy=True),
        head=HeadConfig.of(num_samples=11, presample_factor=3, proposal="log-uniform"),
        loop=LoopConfig(steps=12, evaluate_every=4, batch=7, patience=99, keep=9),
    )


def trained(config, folder):
    session.train(config, folder / "old", cache=folder / "cache")
    return open_run(folder / "old")


def saved(run, step):
    return run.checkpoints.load(step)


@pytest.mark.parametrize("rows", ["rowwise-adagrad", "lazy-adam"])
def test_old_rows_stay_and_new_ones_start_as_in_a_new_run(config, files, tmp_path, rows):
    old = trained(replace(config, optimizer=OptimizerConfig(rows=rows, rows_lr=0.05)), tmp_path)
    grown = grow_run(old, files[1:], tmp_path / "new", cache=tmp_path / "cache", step=8)
    new = open_run(tmp_path / "new")
    assert (grown.num_known, grown.num_new, grown.num_missing) == (OLD, NEW - OLD, 10)
    longer = replace(config.loop, steps=18, evaluate_every=6)  # a pass has half as many more
    source = replace(old.config.log, files=(files[1],))
    assert (source.user, source.item, source.time) == ("user_id", "item_id", "time")
    assert new.config == replace(old.config, log=source, loop=longer)
    assert new.log.num_items == NEW
    assert new.log.item_keys.keys(range(OLD)) == old.log.item_keys.keys(range(OLD))
    before, after = saved(old, 8), saved(new, None)
    split = split_log(new.log, new.config.split)
    fresh = build_training(new.config, new.log, split).model.state_dict()
    assert (after.step, new.checkpoints.best()) == (0, None)
    assert [c.numbers["model.head"]["step"] for c in (before, after)] == [8, 0]
    assert before.tensors.keys() == after.tensors.keys()
    for name, tensor in before.tensors.items():
        now = after.tensors[name]
        if now.shape == tensor.shape:
            assert torch.equal(now, tensor), name
        else:
            assert torch.equal(now[:OLD], tensor), name
            assert torch.equal(now[OLD:], fresh[name.removeprefix("model.")][OLD:]), name
    bias = after.tensors["model.head.table.bias"]
    assert torch.equal(bias[OLD:], bias_from_counts(split.train_counts)[OLD:])
    assert after.optimizers == before.optimizers
    updates = [c.numbers["model.head.table"]["num_updates"] for c in (before, after)]
    assert updates == [8, 8]


def test_a_run_may_grow_again_and_without_new_items(config, files, tmp_path):
    old = trained(config, tmp_path)
    grow_run(old, files, tmp_path / "new", cache=tmp_path / "cache")
    once = open_run(tmp_path / "new")
    grown = grow_run(once, files, tmp_path / "again", cache=tmp_path / "cache")
    assert (grown.num_known, grown.num_new, grown.num_missing) == (NEW, 0, 0)
    again = open_run(tmp_path / "again")
    assert again.config == once.config
    first, second = saved(once, 0), saved(again, 0)
    assert all(torch.equal(second.tensors[name], t) for name, t in first.tensors.items())


def test_methods_with_state_for_the_classes_of_one_log_are_refused(config):
    refused = {}
    for method in METHODS:
        try:
            check_can_grow(TrainConfig(log=config.log, head=HeadConfig.of(method=method)))
        except UsageError as error:
            refused[method] = str(error)
    trees = {name for name, kind in METHODS.items() if not issubclass(kind, FlatHead)}
    learning = {name for name, kind in METHODS.items() if kind.learns_state}
    assert refused.keys() == trees | learning
    assert {"huffman", "two-level", "adaptive"} <= trees
    assert refused["huffman"] == (
        "the method 'huffman' arranges its classes by their frequencies in the old log: such a run "
        "cannot grow. Train a new run on the new log with `tapas train`."
    )
    assert refused["in-batch"] == (
        "the method 'in-batch' learns state for the classes of the old log besides its rows: such "
        "a run cannot grow. Train a new run on the new log with `tapas train`."
    )


def test_columns_of_the_new_log_may_have_other_names(config, files, tmp_path):
    old = trained(config, tmp_path)
    renamed = tmp_path / "renamed.csv"
    week = pl.read_parquet(files[1]).rename({"user_id": "who", "item_id": "what", "time": "at"})
    week.write_csv(renamed)
    options = {"cache": tmp_path / "cache", "columns": {"user": "who", "item": "what"}}
    with pytest.raises(UsageError, match=r"no column looks like the user or the item\."):
        grow_run(old, [str(renamed)], tmp_path / "new", cache=tmp_path / "cache")
    grown = grow_run(old, [str(renamed)], tmp_path / "new", **options)
    assert (grown.num_known, grown.num_new) == (OLD, NEW - OLD)


def test_a_log_without_any_known_item_is_refused(config, files, tmp_path):
    old = trained(config, tmp_path)
    other = tmp_path / "other.parquet"
    pl.read_parquet(files[1]).with_columns(pl.col("item_id") + 10**6).write_parquet(other)
    words = (
        rf"^none of the {OLD} items of .* is in the new log\. Check that both logs write item "
        r"keys in the same way, or train a new run with `tapas train`\.$"
    )
    with pytest.raises(UsageError, match=words):
        grow_run(old, [str(other)], tmp_path / "new", cache=tmp_path / "cache")
    assert not (tmp_path / "new").exists()


def test_a_failure_leaves_no_run_behind(config, files, tmp_path, monkeypatch):
    old = trained(config, tmp_path)
    there = sorted(tmp_path.iterdir())
    with pytest.raises(
        UsageError, match=r"^there is no checkpoint of step 5 in .* Known steps: 4, 8, 12\.$"
    ):
        grow_run(old, files, tmp_path / "new", cache=tmp_path / "cache", step=5)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(growing, "write_state", full)  # the checkpoint is not completed
    with pytest.raises(UsageError, match=r"No space left on device\. Free some space; nothing"):
        grow_run(old, files, tmp_path / "new", cache=tmp_path / "cache")
    assert sorted(tmp_path.iterdir()) == there
