"""Fitting the mixture of a model to validation points."""

from dataclasses import replace

import pytest
import torch

from tapas.data.source import LogSource
from tapas.evaluation.ranked_lists import ListOptions, ranked_lists
from tapas.training import mixture_fit
from tapas.training.build import build_training
from tapas.training.config import HeadConfig, LoopConfig, ModelConfig, TrainConfig
from tapas.training.mixture_fit import MixtureFit
from tapas.training.validation import validation_examples, validator

CONFIG = TrainConfig(
    log=LogSource(files=("x.parquet",)),
    model=ModelConfig(dim=4, history=3, copy=True, follow=True, encoder="mean", inputs="own"),
    head=HeadConfig.of(method="full", next_items=3),
    loop=LoopConfig(steps=4, batch=7),
)
OPTIONS = ListOptions(CONFIG.model.reads)


def numbers_of(model):
    return {name: x.clone() for name, x in model.mixture.state_dict().items()}


def fit_of(data, model, options=OPTIONS):
    """The fit at all validation points, the loss that it returns, and the mean loss of lists."""
    log, split = data
    given = log, *validation_examples(log, CONFIG, split), options
    fit = MixtureFit(*given, train_counts=split.train_counts)
    loss = fit.fit(model)
    return fit, loss, float(ranked_lists(model, *given)[1].mean())


@pytest.mark.parametrize("method", ["full", "warp", "huffman"])
def test_the_loss_of_a_fit_is_that_of_lists_at_the_same_points(data, method):
    """By its probabilities, by scores that are none, and without a table of class vectors."""
    config = replace(CONFIG, head=HeadConfig.of(method=method, next_items=3))
    model = build_training(config, *data).model
    before = numbers_of(model)
    log, split = data
    given = log, *validation_examples(log, CONFIG, split), OPTIONS
    start = float(ranked_lists(model, *given)[1].mean())
    _, loss, of_lists = fit_of(data, model)
    assert loss == pytest.approx(of_lists, abs=2e-3)  # log partitions are interpolated
    assert loss < start
    after = numbers_of(model)
    fitted = {name for name, x in after.items() if not torch.equal(x, before[name])}
    scaled = set() if method == "huffman" else {"scale"}  # a tree has no logits of classes
    # nobody has an item twice in this log: nothing is known about copying
    assert fitted == {"gate", "follow.decay", "follow.trust"} | scaled


def test_points_are_read_a_few_at_a_time(data, monkeypatch):
    model = build_training(CONFIG, *data).model
    options = ListOptions(CONFIG.model.reads, exclude_seen=True, excluded_class=0)
    _, want, _ = fit_of(data, model, options)
    numbers = numbers_of(model)
    monkeypatch.setattr(mixture_fit, "AT_ONCE", 2)
    _, loss, _ = fit_of(data, model, options)
    assert loss == pytest.approx(want, rel=1e-5)
    torch.testing.assert_close(numbers_of(model), numbers, rtol=1e-3, atol=1e-4)


def test_of_many_points_a_sample_is_fitted(data, monkeypatch):
    """Over all of them, from the first to the last."""
    monkeypatch.setattr(mixture_fit, "PART_POINTS", 2)
    for most, scores, size in ((5, 1 << 29, 5), (5, 3 * 40, 3), (5, 1, 2)):
        monkeypatch.setattr(mixture_fit, "MOST_POINTS", most)
        monkeypatch.setattr(mixture_fit, "SCORES", scores)
        log, split = data
        points, target = validation_examples(log, CONFIG, split)
        fit = MixtureFit(log, points, target, OPTIONS, train_counts=split.train_counts)
        assert len(fit.points) == len(fit.target) == size
        assert fit.points.user[[0, -1]].tolist() == points.user[[0, -1]].tolist()
        assert fit.fit(build_training(CONFIG, *data).model) > 0


def test_each_model_gets_the_numbers_of_its_parts(data):
    """The parts are fitted once for a model, the shares at each evaluation."""
    log, split = data
    validate = validator(CONFIG, log, split)
    first, second = (build_training(CONFIG, *data).model for _ in range(2))
    scores = validate(first)
    numbers = numbers_of(first)
    assert validate(second) == scores
    assert all(torch.equal(x, numbers_of(second)[name]) for name, x in numbers.items())
    with torch.no_grad():
        first.head.table.weight.mul_(30)
    validate(first)
    changed = {name for name, x in numbers_of(first).items() if not torch.equal(x, numbers[name])}
    assert changed == {"gate", "scale"}


def test_a_model_without_counting_parts_has_nothing_to_fit(data):
    plain = replace(CONFIG, model=replace(CONFIG.model, copy=False, follow=False))
    model = build_training(plain, *data).model
    with pytest.raises(ValueError, match="no counting parts"):
        fit_of(data, model)
    assert "loss" in validator(plain, *data)(model)
