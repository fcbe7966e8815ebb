"""Evaluating a run: the right checkpoint, the same examples for model and baselines."""

import shutil
from dataclasses import replace

import polars as pl
import pytest
import torch
from oracle.command_line import chain, chain_log, write_chain

from tapas import UsageError
from tapas.data.prepare import prepare_log
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig, next_items_at, split_log
from tapas.evaluation.ranked_lists import ListOptions, ranked_lists, without_seen
from tapas.evaluation.scores import metrics_per_example, paired_difference
from tapas.tables.local import LocalTable
from tapas.training import run as session
from tapas.training.config import HeadConfig, LoopConfig, ModelConfig, TrainConfig
from tapas.training.journal import read_journal
from tapas.training.run_evaluation import evaluate_run, evaluate_runs, load_model
from tapas.training.run_folder import create_run, open_run


def configured(file, **loop):
    return TrainConfig(
        log=LogSource(files=(str(file),)),
        model=ModelConfig(dim=6, history=5),
        head=HeadConfig.of(num_samples=6, presample_factor=3, next_items=3),
        loop=LoopConfig(steps=8, evaluate_every=2, batch=8, patience=99, keep=9, **loop),
    )


@pytest.fixture(scope="module", params=[False, True], ids=["keep", "exclude"])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    file = write_chain(folder / "chain.parquet", num_users=20, num_items=30, num_baskets=8)
    config = configured(file, exclude_seen=request.param)
    session.train(config, folder / "run", cache=folder / "cache")
    return open_run(folder / "run")


def test_the_best_checkpoint_is_the_default(run, tmp_path):
    """Also if there is a newer one."""
    shutil.copytree(run.path, tmp_path / "run")
    copied = open_run(tmp_path / "run")
    best = copied.checkpoints.best()
    newest = copied.checkpoints.load()
    tensors = {name: torch.zeros_like(tensor) for name, tensor in newest.tensors.items()}
    copied.checkpoints.save(99, tensors, newest.state, best=False)
    assert load_model(copied)[1] == best
    for step in copied.checkpoints.steps():
        model, at = load_model(copied, step)
        assert at == step
        saved = copied.checkpoints.load(step).tensors
        assert torch.equal(model.head.table.weight, saved["model.head.table.weight"])
        assert not model.training
    assert evaluate_run(copied)[1] == best
    assert evaluate_run(copied, step=99)[1] == 99


def test_rows_are_read_once_and_not_drawn_first(run, monkeypatch):
    """Drawing rows and copying over them took most of the time to open a large run."""
    monkeypatch.setattr(LocalTable, "init_rows", lambda table, weight: pytest.fail("rows drawn"))
    model, _ = load_model(run)
    assert not any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    model.train()
    model.head(torch.ones(3, 6), torch.tensor([0, 1, 2])).backward()  # and can be trained


@pytest.mark.parametrize("split_name", ["test", "validation"])
@pytest.mark.parametrize("exclude", [True, False, None])
def test_the_model_is_scored_by_its_lists_at_the_points_of_the_split(run, split_name, exclude):
    """`exclude_seen` defaults to that of the run."""
    found, at = evaluate_run(run, split=split_name, exclude_seen=exclude)
    exclude = run.config.loop.exclude_seen if exclude is None else exclude
    split = split_log(run.log, run.config.split)
    points = getattr(split, split_name)
    target = next_items_at(run.log, points, 3)
    asked = int((target >= 0).sum())
    if exclude:
        target = without_seen(run.log, points, target)
    assert found.split["seen_targets"] == asked - int((target >= 0).sum())
    model, step = load_model(run)
    ranked, loss = ranked_lists(model, run.log, points, target, ListOptions(5, exclude))
    hits = sum(
        len(set(run.log.items[run.log.offsets[user] : point].tolist()) & set(row.tolist()))
        for user, point, row in zip(points.user, points.point, ranked, strict=True)
    )
    assert (hits == 0) == exclude
    assert (found.part, at, found.num_targets) == (split_name, step, 3)
    assert found.exclude_seen is exclude
    mine = found.scores["model"]
    assert mine.num_examples == int((target >= 0).any(axis=1).sum())
    for name, values in metrics_per_example(ranked, torch.from_numpy(target), k=3).items():
        assert mine.metrics[name].mean == pytest.approx(float(values.double().nanmean()))
        assert mine.metrics[name].low <= mine.metrics[name].mean <= mine.metrics[name].high
    assert mine.metrics["loss"].mean == pytest.approx(float(loss.double().nanmean()))
    assert found.split["test_users"] == len(split.test)


def test_baselines_are_scored_on_the_same_examples_and_leads_are_differences(run):
    found, _ = evaluate_run(run)
    assert list(found.scores) == ["model", "most popular", "own most frequent", "co-occurrence"]
    assert {scores.num_examples for scores in found.scores.values()} == {len(
        split_log(run.log, run.config.split).test
    )}  # fmt: skip
    assert list(found.lead) == list(found.scores)[1:]
    for name, lead in found.lead.items():
        other = found.scores[name].metrics
        assert "loss" not in other
        gap = found.scores["model"].metrics["map@20"].mean - other["map@20"].mean
        assert lead.mean == pytest.approx(gap)


def test_training_and_evaluation_give_the_same_numbers(run):
    lines = read_journal(run.path / "journal.jsonl")
    for line in (line for line in lines if line["event"] == "evaluate"):
        found, _ = evaluate_run(run, split="validation", step=line["step"])
        for name in ("map@20", "recall@20", "loss"):
            assert line[name] == pytest.approx(found.scores["model"].metrics[name].mean)


def test_what_cannot_be_evaluated_is_an_error(run, tmp_path):
    log = chain_log(tmp_path, num_users=3, num_items=9, num_baskets=3)
    config = configured("x.parquet")
    empty = create_run(tmp_path / "empty", config, log)
    untested = create_run(tmp_path / "all", replace(config, split=SplitConfig(test=0)), log)
    calls = [
        (run, "tset", "unknown split 'tset'. Did you mean 'test'? Known: test, validation."),
        (
            empty,
            "validation",
            f"{empty.path} has no checkpoint yet. Train on with `tapas train --resume "
            f"{empty.path}`.",
        ),
        (
            untested,
            "test",
            "this run holds out no test events. Train with split.test above 0, or evaluate on the "
            "other split.",
        ),
    ]
    for evaluated, split, words in calls:
        with pytest.raises(UsageError) as error:
            evaluate_run(evaluated, split=split)
        assert str(error.value) == words


@pytest.fixture(scope="module")
def other(run, tmp_path_factory):
    """A run with another model on the log of `run`, in a folder called "model"."""
    folder = tmp_path_factory.mktemp("other")
    config = replace(run.config, model=ModelConfig(dim=4, history=3))
    session.train(config, folder / "model", cache=folder / "cache")
    return open_run(folder / "model")


def real(ids):
    return ids[ids >= 0]


def test_runs_and_lists_are_judged_at_the_same_points(run, other, tmp_path, monkeypatch):
    monkeypatch.chdir(other.path.parent)
    other = replace(other, path=other.path.relative_to(other.path.parent))  # called as the first is
    split = split_log(run.log, run.config.split)
    points, exclude = split.test, run.config.loop.exclude_seen
    target = next_items_at(run.log, points, 3)
    if exclude:
        target = without_seen(run.log, points, target)
    lists = {}
    for name, each, history in (("model", run, 5), ("./model", other, 3)):
        options = ListOptions(history, exclude)
        lists[name], _ = ranked_lists(load_model(each)[0], run.log, points, target, options)
    file = tmp_path / "lists.csv"
    rows = [
        f"{user},{item},{rank}\n"
        for place, user in enumerate(run.log.user_keys.keys(points.user))
        for rank, item in enumerate(run.log.item_keys.keys(real(lists["./model"][place])))
    ]
    file.write_text("user,item,rank\n" + "".join(rows))
    done = []
    found = evaluate_runs(
        [run, other], against=[file], on_progress=lambda *counts: done.append(counts)
    )
    assert list(found.evaluation.scores)[4:] == ["./model", str(file)]
    assert list(found.steps) == [str(run.path), "./model"]
    assert found.lists[str(file)].num_lists == len(points)
    assert done[-1] == (2 * len(points),) * 2
    values = {
        n: metrics_per_example(r, torch.from_numpy(target))["map@20"] for n, r in lists.items()
    }
    gap = paired_difference(values["model"], values["./model"])
    assert found.evaluation.lead["./model"] == gap
    assert found.evaluation.lead[str(file)] == gap  # its own lists, read from a file
    assert found.evaluation.scores["./model"].metrics["loss"].mean > 0
    alone = evaluate_run(run)[0]
    assert {n: found.evaluation.scores[n] for n in alone.scores} == alone.scores


def test_runs_of_another_log_or_split_are_refused(run, tmp_path):
    small = chain_log(tmp_path, num_users=3, num_items=9, num_baskets=3)
    frame = chain(num_users=20, num_items=30, num_baskets=8)
    file = tmp_path / "renamed.parquet"
    frame.with_columns(pl.col("user_id") + "x").write_parquet(file)
    renamed = prepare_log(LogSource(files=(str(file),)), tmp_path / "cache")
    sizes = [f"{x.num_events:,} events, {x.num_users} users and {x.num_items} items"
             for x in (run.log, small)]  # fmt: skip
    cases = {
        "small": (run.config, small, f"their logs have {sizes[0]}, and {sizes[1]}. Train both on "
                  "the same log, with the same options for reading it."),
        "split": (replace(run.config, split=SplitConfig(kind="last")), run.log,
                  "split.kind is time and last. Train both with the same split."),
        "keys": (run.config, renamed, "their logs have equal sizes, but other events. Train both "
                 "on the same log, with the same options for reading it."),
    }  # fmt: skip
    for name, (config, its_log, words) in cases.items():
        second = create_run(tmp_path / name, config, its_log)
        with pytest.raises(UsageError) as error:
            evaluate_runs([run, second])
        assert str(error.value) == f"{run.path} and {second.path} cannot be compared: {words}"
