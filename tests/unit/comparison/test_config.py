"""The settings of a comparison, and their errors."""

import dataclasses

import pytest

from tapas.comparison.config import CompareConfig, quick
from tapas.comparison.synthetic_log import SyntheticLogConfig
from tapas.data.source import LogSource
from tapas.errors import UsageError
from tapas.training.config import ModelConfig, OptimizerConfig

LOG = LogSource(files=("clicks.csv",))


def test_there_is_one_log():
    words = r"a comparison needs one log: name files, or use the built-in one with --synthetic\."
    with pytest.raises(UsageError, match=words):
        CompareConfig()
    with pytest.raises(UsageError, match=words):
        CompareConfig(log=LOG, made=SyntheticLogConfig())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contenders": ()}, r"no method to compare\. Name some with --methods\."),
        (
            {"budget_seconds": 0.0},
            r"the budget must be a time above 0, got 0\.0 seconds\. Give --b",
        ),
        ({"budget_seconds": float("nan")}, r"the budget must be a time above 0, got nan seconds"),
        (
            {"model": ModelConfig(inputs="shared"), "contenders": ("full", "huffman")},
            r"the encoder cannot read the rows of 'huffman', which has none for a class\. Set "
            r"model\.inputs to 'own', or leave that method out\.",
        ),
    ],
)
def test_impossible_settings_are_an_error_before_any_work(changes, words):
    with pytest.raises(UsageError, match=words):
        quick(**changes)


def test_all_methods_have_the_same_n_and_at_most_the_number_of_classes():
    config = CompareConfig(log=LOG)
    assert [config.num_samples(c) for c in (4, 800, 10_000, 10**6)] == [1, 100, 1_000, 1_000]
    assert [quick(samples=50).num_samples(c) for c in (20, 800)] == [20, 50]


def test_runs_of_two_contenders_differ_only_in_the_head():
    config = quick(optimizer=OptimizerConfig(encoder_lr=0.01))
    runs = [
        config.train_config(
            LOG, 8, contender=c, rows_lr=0.7, knob=k, steps=9, seed=3, num_classes=500
        )
        for c, k in (("full", None), ("sampled", 0.5))
    ]
    assert runs[0].head.method == "full"
    options = runs[1].head.options
    assert (runs[1].head.method, options["num_samples"], options["alpha"]) == ("sampled", 8, 0.5)
    assert dataclasses.replace(runs[1], head=runs[0].head) == runs[0]
    assert (runs[0].optimizer.rows_lr, runs[0].optimizer.encoder_lr) == (0.7, 0.01)
    assert (runs[0].loop.steps, runs[0].loop.seed, runs[0].loop.batch) == (9, 3, config.batch)
