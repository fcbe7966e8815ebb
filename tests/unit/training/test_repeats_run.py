"""A run that repeats: built as configured, resumed bit for bit, judged by its own mixture."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from oracle.journeys import chain_log, write_chain

from tapas import UsageError
from tapas.checkpoints.folder import CheckpointFolder
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig, split_log, targets_of
from tapas.evaluation.ranked_lists import ListRules, ranked_lists
from tapas.optim import SGD
from tapas.training import run as session
from tapas.training.build import build
from tapas.training.config import (
    HeadConfig,
    LoopConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
    as_toml,
    build_config,
)
from tapas.training.run_evaluation import evaluate_run, load_model
from tapas.training.run_folder import open_run

CONFIG = TrainConfig(
    log=LogSource(files=("x.parquet",)),
    model=ModelConfig(dim=4, history=6, dropout=0.3, repeats=True),
    head=HeadConfig.of(num_samples=5, presample_factor=2),
    loop=LoopConfig(steps=7, evaluate_every=4, batch=3, patience=99, checkpoint_seconds=1e9),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    log = chain_log(tmp_path_factory.mktemp("log"), num_users=30, num_items=40, num_baskets=6)
    return log, split_log(log, SplitConfig())


@pytest.fixture
def file(tmp_path):
    """So few items that they come back within a history."""
    return write_chain(tmp_path / "chain.parquet", num_users=9, num_items=9, num_baskets=6)


def begin(config, out, **options):
    return session.train(config, out, cache=out.parent / "cache", **options)


def test_repeats_are_off_unless_asked_for(data):
    assert build_config({"log": {"files": ["a"]}}).model.repeats is False
    parts = build(replace(CONFIG, model=replace(CONFIG.model, repeats=False)), *data)
    assert parts.model.repeats is None
    assert not any("repeats" in name for name in parts.model.state_dict())
    assert "repeats = true" in as_toml(CONFIG)
    with pytest.raises(UsageError, match=r"model\.repeats must be a bool, got 1\."):
        build_config({"log": {"files": ["a"]}, "model": {"repeats": 1}})


def test_repeats_are_as_configured_and_the_optimizer_moves_them(data):
    config = replace(CONFIG, optimizer=OptimizerConfig(rows="sgd", rows_lr=0.3))
    parts = build(config, *data)
    repeats = parts.model.repeats
    assert (repeats.history, repeats.rate.num_classes) == (6, data[0].num_items)
    assert type(repeats.rate.row_optimizer) is SGD.formula
    assert repeats.rate.row_optimizer.lr == 0.3
    (group,) = parts.optimizer.param_groups
    own = [repeats.age, repeats.key, repeats.gate, repeats.gate_bias]
    learned = [*parts.model.encoder.parameters(), *own]
    assert [id(p) for p in group["params"]] == [id(p) for p in learned]


def test_all_but_the_repeats_begins_as_without_them(data):
    with_them = build(CONFIG, *data).model.state_dict()
    without = build(replace(CONFIG, model=replace(CONFIG.model, repeats=False)), *data).model
    for name, value in without.state_dict().items():
        if torch.is_tensor(value):
            assert torch.equal(value, with_them[name]), name


@pytest.mark.parametrize("positions", ["all", "last"])
@pytest.mark.parametrize(
    "encoder",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("mean", "gru")), "transformer"],
)
def test_stopped_again_and_again_it_ends_with_the_same_bits(file, tmp_path, encoder, positions):
    config = replace(
        CONFIG,
        log=LogSource(files=(str(file),)),
        model=replace(CONFIG.model, encoder=encoder),
        head=replace(CONFIG.head, positions=positions, target_decay=0.7),
    )
    begin(config, tmp_path / "whole")
    lives = count(1)
    begin(config, tmp_path / "broken", should_stop=lambda: next(lives) >= 2)
    session.resume(tmp_path / "broken")
    whole, broken = (
        CheckpointFolder(tmp_path / name / "checkpoints").load() for name in ("whole", "broken")
    )
    assert whole.state == broken.state
    assert whole.tensors.keys() == broken.tensors.keys()
    for name, value in whole.tensors.items():
        assert torch.equal(value, broken.tensors[name]), name
    for name in ("age", "gate", "gate_bias", "key", "rate.weight", "rate.weight_sum"):
        assert bool(whole.tensors[f"model.repeats.{name}"].any()), f"{name} never moved"


@pytest.mark.parametrize("exclude_seen", [False, True], ids=["keep", "exclude"])
def test_points_are_ranked_and_judged_by_the_mixture(file, tmp_path, exclude_seen):
    begin(replace(CONFIG, log=LogSource(files=(str(file),))), tmp_path / "run")
    run = open_run(tmp_path / "run")
    model, _ = load_model(run)
    with torch.no_grad():
        model.repeats.gate_bias += 3  # copies decide
    log, points = run.log, split_log(run.log, run.config.split).test
    start, target = log.offsets[points.user], targets_of(log, points, 5)
    ranked, loss = ranked_lists(model, log, points, target, ListRules(6, exclude_seen))
    for place, (s, p) in enumerate(zip(start, points.point, strict=True)):
        seen = torch.from_numpy(log.items[s:p].astype(np.int64))
        recent = seen[-6:][None]
        after = model.after(recent, torch.tensor([recent.shape[1]]))
        log_p = after.log_prob(torch.arange(log.num_items)[None])[0]
        wanted = [t for t in target[place].tolist() if t >= 0]
        assert float(loss[place]) == pytest.approx(-float(log_p[wanted].mean()), rel=1e-4)
        if exclude_seen:
            log_p[seen] = -torch.inf
        elif len(seen) >= 6:
            assert set(ranked[place, : len(recent.unique())].tolist()) == set(
                recent.unique().tolist()
            )
        best = [c for c in log_p.argsort(descending=True).tolist() if log_p[c] > -torch.inf]
        assert ranked[place].tolist() == (best + [-1] * 20)[:20]
    found, _ = evaluate_run(run, exclude_seen=exclude_seen)
    assert found.scores["model"].num_examples > 0
