"""A run judged: the right checkpoint, the right examples, the same for model and baselines."""

import shutil
from dataclasses import replace

import pytest
import torch
from oracle.journeys import chain_log, write_chain

from tapas import UsageError
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig, split_log, targets_of
from tapas.evaluation.ranked_lists import ListRules, ranked_lists, without_seen
from tapas.evaluation.scores import measure
from tapas.training import run as session
from tapas.training.config import HeadConfig, LoopConfig, ModelConfig, TrainConfig
from tapas.training.run_evaluation import evaluate_run, load_model
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


def test_the_best_checkpoint_is_taken_unless_told(run):
    best = run.checkpoints.best()
    assert load_model(run)[1] == best
    for step in run.checkpoints.steps():
        model, at = load_model(run, step)
        assert at == step
        saved = run.checkpoints.load(step).tensors
        state = model.state_dict()
        assert torch.equal(state["head.table.weight"], saved["model.head.table.weight"])
        assert not model.training


def test_a_newer_checkpoint_that_is_not_the_best_is_not_taken(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "run")
    copied = open_run(tmp_path / "run")
    best = copied.checkpoints.best()
    newest = copied.checkpoints.load()
    tensors = {name: torch.zeros_like(tensor) for name, tensor in newest.tensors.items()}
    copied.checkpoints.save(99, tensors, newest.state, best=False)
    assert load_model(copied)[1] == best
    assert evaluate_run(copied)[1] == best
    assert evaluate_run(copied, step=99)[1] == 99
    assert not load_model(copied, 99)[0].state_dict()["head.table.weight"].any()


@pytest.mark.parametrize("part", ["test", "validation"])
def test_the_model_is_judged_by_its_lists_at_the_points_of_the_part(run, part):
    found, at = evaluate_run(run, part=part)
    split = split_log(run.log, run.config.split)
    points = getattr(split, part)
    target = targets_of(run.log, points, 3)
    if run.config.loop.exclude_seen:
        target = without_seen(run.log, points, target)
    model, step = load_model(run)
    rules = ListRules(5, run.config.loop.exclude_seen)
    ranked, loss = ranked_lists(model, run.log, points, target, rules)
    assert (found.part, at, found.num_targets) == (part, step, 3)
    assert found.exclude_seen == run.config.loop.exclude_seen
    mine = found.scores["model"]
    assert mine.num_examples == int((target >= 0).any(axis=1).sum())
    for name, values in measure(ranked, torch.from_numpy(target), k=3).items():
        assert mine.metrics[name].mean == pytest.approx(float(values.double().nanmean()))
        assert mine.metrics[name].low <= mine.metrics[name].mean <= mine.metrics[name].high
    assert mine.metrics["loss"].mean == pytest.approx(float(loss.double().nanmean()))
    assert found.split["test_users"] == len(split.test)


def test_baselines_are_judged_on_the_same_examples_and_leads_are_differences(run):
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


@pytest.mark.parametrize("exclude", [True, False])
def test_seen_items_are_left_out_or_kept_as_asked_and_it_is_said(run, exclude):
    found, _ = evaluate_run(run, exclude_seen=exclude)
    assert found.exclude_seen is exclude
    points = split_log(run.log, run.config.split).test
    target = targets_of(run.log, points, 3)
    asked = int((target >= 0).sum())
    if exclude:
        target = without_seen(run.log, points, target)
    ranked, _ = ranked_lists(load_model(run)[0], run.log, points, target, ListRules(5, exclude))
    assert found.split["seen_targets"] == asked - int((target >= 0).sum())
    want = measure(ranked, torch.from_numpy(target))["map@20"]
    assert found.scores["model"].metrics["map@20"].mean == pytest.approx(float(want.nanmean()))
    seen = [
        set(run.log.items[run.log.offsets[user] : point].tolist())
        for user, point in zip(points.user, points.point, strict=True)
    ]
    hits = sum(len(seen[place] & set(row.tolist())) for place, row in enumerate(ranked))
    assert (hits == 0) == exclude


def test_the_first_examples_alone_can_be_judged(run):
    done = []
    found, _ = evaluate_run(run, most=4, on_progress=lambda now, total: done.append((now, total)))
    assert {scores.num_examples for scores in found.scores.values()} == {4}
    assert done == [(4, 4)]


def test_one_example_has_an_endless_interval(run):
    metric = evaluate_run(run, most=1)[0].scores["model"].metrics["map@20"]
    assert (metric.low, metric.high) == (-float("inf"), float("inf"))


def test_an_unknown_part_is_told_the_known_ones(run):
    with pytest.raises(UsageError) as error:
        evaluate_run(run, part="tset")
    assert str(error.value) == "unknown part 'tset'. Did you mean 'test'? Known: test, validation."


def test_a_run_without_a_checkpoint_is_told_how_to_get_one(tmp_path):
    log = chain_log(tmp_path, num_users=3, num_items=9, num_baskets=3)
    run = create_run(tmp_path / "run", configured("x.parquet"), log)
    with pytest.raises(UsageError) as error:
        evaluate_run(run, part="validation")
    assert str(error.value) == (
        f"{run.path} has no checkpoint yet. `tapas train --resume {run.path}` makes one."
    )


def test_a_split_without_a_test_part_is_said(tmp_path):
    log = chain_log(tmp_path, num_users=3, num_items=9, num_baskets=3)
    config = replace(configured("x.parquet"), split=SplitConfig(test=0))
    run = create_run(tmp_path / "run", config, log)
    with pytest.raises(UsageError) as error:
        evaluate_run(run)
    assert str(error.value) == "the split of this run holds nothing out for test."
