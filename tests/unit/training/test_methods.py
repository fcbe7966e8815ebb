"""Every method is built as configured, trains, and resumes from a checkpoint."""

import re
from collections import Counter
from dataclasses import replace

import pytest
import torch

from tapas.checkpoints.model import load_checkpoint, save_checkpoint
from tapas.cli.cite import cite_run
from tapas.data.source import LogSource
from tapas.heads import METHODS
from tapas.heads.citations import BIBTEX
from tapas.proposals import Bigram, ByRank, LogUniform, Squashed
from tapas.training.build import TrainingData, build_model, build_training
from tapas.training.config import (
    HeadConfig,
    LoopConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from tapas.training.step import step

CONFIG = TrainConfig(
    log=LogSource(files=("x.parquet",)),
    model=ModelConfig(encoder="mean", dim=6, history=7),
    optimizer=OptimizerConfig(rows_lr=0.3),
    loop=LoopConfig(batch=6, seed=11),
)


def of_method(method, **options):
    options = METHODS[method].sample_options(7) | options
    return replace(CONFIG, head=HeadConfig(method=method, options=options))


def run_steps(setup, numbers):
    for number in numbers:
        step(setup.model, setup.optimizer, setup.windows.batch(number), seed=11, number=number,
             clip=1.0)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_and_resumes_from_a_checkpoint(method, data, tmp_path):
    straight, broken = (build_training(of_method(method), *data) for _ in range(2))
    assert type(straight.model.head) is METHODS[method]
    assert straight.model.head.seed == 11
    run_steps(straight, range(5))
    run_steps(broken, range(3))
    save_checkpoint(tmp_path, 3, broken.model, broken.optimizer)
    again = build_training(of_method(method), *data)
    assert load_checkpoint(tmp_path, again.model, again.optimizer) == (3, {})
    run_steps(again, range(3, 5))
    mine, theirs = (m.model.state_dict() for m in (straight, again))
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        same = torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else True
        assert same, name
    assert straight.model.head.step == again.model.head.step == 5
    log, split = data
    evaluated = build_model(
        straight.config, split.train_counts, data=TrainingData(None, log, split.train_end)
    )
    evaluated.load_state_dict(mine)  # for evaluation, where there are no batches
    items, lengths = torch.tensor([[1, 2, 3]]), torch.tensor([3])
    ranked = [m.eval().predict(items, lengths).topk(5) for m in (straight.model, evaluated)]
    assert all(map(torch.equal, *ranked))


def test_all_parameters_of_a_head_are_trained(data):
    """Projections of an adaptive softmax are dense: the encoder's optimizer updates them."""
    setup = build_training(of_method("adaptive"), *data)
    dense = {n for n, _ in setup.model.named_parameters() if n.startswith("head.proj")}
    assert dense
    learned = {id(p) for group in setup.optimizer.param_groups for p in group["params"]}
    assert all(id(p) in learned for n, p in setup.model.named_parameters() if n in dense)


def test_options_reach_the_heads_that_read_them(data):
    values = {
        "rate": 0.02, "min_ess": 3.0, "negatives": 2.0, "penalty": 0.5, "share": 0.25, "tries": 9,
        "calibration": 0.5, "bucket_classes": 9, "num_samples": 5, "presample_factor": 3,
        "num_clusters": 4,
    }  # fmt: skip
    for method, kind in METHODS.items():
        given = {option: value for option, value in values.items() if option in kind.options}
        head = build_training(of_method(method, **given), *data).model.head
        assert {option: getattr(head, option) for option in given} == given, method
    left_out = {"num_samples": None, "presample_factor": None}
    few = build_training(of_method("dynamic-negatives", **left_out), *data).model.head
    assert (few.num_samples, few.presample_factor) == (1, 40 // 8)


def test_proposals_are_as_named(data):
    log, split = data
    assert type(build_training(of_method("nce"), log, split).model.head.proposal) is Squashed
    ranked = build_training(
        of_method("nce", proposal="log-uniform"), log, split
    ).model.head.proposal
    assert type(ranked) is ByRank
    assert type(ranked.base) is LogUniform
    most = ranked.log_prob(torch.arange(log.num_items)).argmax()
    assert split.train_counts[most] == split.train_counts.max()


@pytest.mark.parametrize(
    "method", [name for name, kind in METHODS.items() if "proposal" in kind.options]
)
def test_a_bigram_gets_the_previous_class(method, data):
    setup = build_training(of_method(method, proposal="bigram"), *data)
    assert type(setup.model.head.proposal) is Bigram
    assert setup.model.head.wants_context
    seen = []
    head, forward = setup.model.head, setup.model.head.forward
    head.forward = lambda *args, context=None: (
        seen.append(context) or forward(*args, context=context)
    )
    run_steps(setup, range(2))
    batch = setup.windows.batch(0)
    assert torch.equal(seen[0], batch.items.reshape(-1)[batch.query_index])
    assert not build_training(of_method(method), *data).model.head.wants_context


def test_a_bigram_gets_the_previous_class_from_a_model_with_a_copy_part_too(data):
    config = of_method("tapas", proposal="bigram")
    run_steps(
        build_training(replace(config, model=replace(config.model, copy=True)), *data), range(2)
    )


def test_pairs_are_those_that_batches_predict(data):
    """All positions of an epoch, each once: their items and targets."""
    log, split = data
    config = replace(of_method("nce"), model=replace(CONFIG.model, history=1_000))
    windows = build_training(config, log, split).windows
    previous, following, count = TrainingData(windows, log, split.train_end).pairs(5)
    wanted = Counter()
    for number in range(windows.num_examples // windows.batch_size):
        batch = windows.batch(number)
        before = batch.items.reshape(-1)[batch.query_index].tolist()
        for item, targets in zip(before, batch.target.tolist(), strict=True):
            wanted.update((item, target) for target in targets if target >= 0)
    assert windows.num_examples % windows.batch_size == 0
    found = zip(previous.tolist(), following.tolist(), strict=True)
    assert dict(zip(found, count.tolist(), strict=True)) == wanted


def test_the_citation_of_a_run_leaves_out_rules_it_does_not_use():
    top = replace(
        CONFIG, head=HeadConfig.of(selection="top"), optimizer=OptimizerConfig(rows="sgd")
    )
    assert re.findall(r"@\w+\{(\w+),", cite_run(top)) == ["bai2017tapas"]


def test_bibtex_is_balanced_and_used():
    used = {key for kind in METHODS.values() for key in kind.bibtex}
    used |= {"duffield2007priority", "duchi2011adaptive", "kingma2015adam"}
    assert used == set(BIBTEX)
    for entry in BIBTEX.values():
        assert entry.count("{") == entry.count("}")
        for wanted in ("title = ", "author = ", "year = "):
            assert wanted in entry
