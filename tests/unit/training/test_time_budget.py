"""Steps that fit into a given time."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from error_text import raises_text

from tapas.tables.ranks import ONE_PROCESS
from tapas.training.config import LoopConfig, OptimizerConfig, build_config
from tapas.training.time_budget import fit_to_time, mean_step


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("tapas.training.time_budget.time.monotonic", clock)
    monkeypatch.setattr("tapas.training.time_budget.time.perf_counter", clock)
    return clock


def fitted(clock, monkeypatch, minutes, *, step, evaluation, steps_per_epoch=1_000, spent=0.0):
    class Steps:
        def __init__(self, *args, **options):
            pass

        def run_step(self, number, until):
            clock.now += step
            return 1.0

    def validate(model):
        clock.now += evaluation
        return {}

    monkeypatch.setattr("tapas.training.time_budget.local_steps", Steps)
    config = build_config({"log": {"files": ["x"]}})
    loop = replace(LoopConfig(), steps=50, evaluate_every=5)
    windows = SimpleNamespace(steps_per_epoch=steps_per_epoch)
    setup = SimpleNamespace(
        config=replace(config, loop=loop, optimizer=OptimizerConfig()),
        model=None, windows=windows, optimizer=None,
    )  # fmt: skip
    return fit_to_time(setup, validate, 60 * minutes, ONE_PROCESS, started=clock.now - spent)


def test_steps_and_evaluations_fill_the_time_that_measuring_leaves(clock, monkeypatch):
    config, words = fitted(clock, monkeypatch, 10, step=0.1, evaluation=3.0)
    # 3 + 50 steps and one evaluation are measured: 591.7 s are left, 30 of them to evaluate
    assert (config.loop.steps, config.loop.evaluate_every) == (5_616, 562)
    assert config.loop.patience == 10
    assert words == "10 minutes: 5,616 steps of 0.1 s, 5.62 epochs, and 10 evaluations of 3 s."


def test_the_time_that_reading_the_log_took_is_part_of_it(clock, monkeypatch):
    config, words = fitted(clock, monkeypatch, 10, step=0.1, evaluation=3.0, spent=100.0)
    assert config.loop.steps == 4_616
    assert words.startswith("10 minutes: 4,616 steps of 0.1 s")
    with raises_text(
        "--minutes 1 is too short: a step takes 0.1 s and an evaluation 3 s. Give it at least 2.4 "
        "minutes, or choose a smaller model."
    ):
        fitted(clock, monkeypatch, 1, step=0.1, evaluation=3.0, spent=100.0)


def test_slow_evaluations_become_fewer(clock, monkeypatch):
    config, words = fitted(clock, monkeypatch, 10, step=0.1, evaluation=60.0)
    assert "and 1 evaluation of 60 s." in words
    assert config.loop.evaluate_every == config.loop.steps


def test_a_log_is_not_learned_by_heart(clock, monkeypatch):
    config, _ = fitted(clock, monkeypatch, 60, step=0.01, evaluation=0.1, steps_per_epoch=7)
    assert config.loop.steps == 30 * 7


def test_too_short_a_time_is_an_error_that_names_one_that_is_long_enough(clock, monkeypatch):
    words = (
        "--minutes 0.1 is too short: a step takes 0.5 s and an evaluation 4 s. Give it at least "
        "0.3 minutes, or choose a smaller model."
    )
    with raises_text(words):
        fitted(clock, monkeypatch, 0.1, step=0.5, evaluation=4.0)
    fitted(clock, monkeypatch, 0.3, step=0.5, evaluation=4.0)


def test_the_mean_step_leaves_the_warm_up_out_and_gives_up_on_slow_ones():
    times = iter([9.0, 9.0, 9.0, 1.0, 2.0, 3.0, 100.0])
    assert mean_step(lambda number: next(times), 6.0) == 2.0
    times = iter([50.0, 50.0, 50.0])
    assert mean_step(lambda number: next(times), 6.0) == 50.0
