"""Step times of heads alone, reasons for skipping, and crossings of lines."""

import math
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.estimators import step_times
from experiments.estimators.step_times import (
    StepRun,
    StepTimesConfig,
    break_even,
    build_alone,
    measure_step_times,
    median_of,
    pairs_feed,
    reason_to_skip,
    step_runs,
    time_steps,
    zipf_feed,
)
from tapas.comparison.contenders import CONTENDERS
from tapas.comparison.ledger import Ledger
from tapas.errors import UsageError

QUICK = StepTimesConfig(
    contenders=("full", "sampled-bigram"), classes=(200, 400), dim=8, examples=16, repeats=3,
    block=2, fresh_processes=False,
)  # fmt: skip
RUN = StepRun(contender="sampled", num_classes=1000, num_samples=16, dim=8, examples=9, repeats=4,
              block=1)  # fmt: skip
MUCH = 2**40


def follow(done, total):
    pass


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "step_times.jsonl")


def test_targets_are_drawn_by_the_counts():
    feed, _ = zipf_feed(np.array([70, 20, 10]), 50, 20_000)
    share = np.bincount(feed.log.items, minlength=3) / len(feed.log.items)
    error = np.sqrt(np.array([0.21, 0.16, 0.09]) / 40_000)
    assert (abs(share - [0.7, 0.2, 0.1]) < 4.5 * error).all()  # 1 seed in 50,000 fails


def test_a_feed_of_pairs_predicts_the_second_from_the_first():
    feed, windows = pairs_feed(np.array([[1, 2], [3, 4], [0, 4], [1, 2]]), 5, 4)
    batch = windows.batch(0)
    found = sorted(zip(batch.items[:, 0].tolist(), batch.target[:, 0].tolist(), strict=True))
    assert found == [(0, 4), (1, 2), (1, 2), (3, 4)]
    previous, following, count = feed.pairs(1)
    assert previous.tolist() == [0, 1, 3]
    assert following.tolist() == [4, 2, 4]
    assert count.tolist() == [1, 2, 1]


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_can_be_timed_alone(name, monkeypatch):
    built = []
    monkeypatch.setattr(
        step_times, "build_alone", lambda run: built.append(build_alone(run)) or built[0]
    )
    found = time_steps(replace(RUN, contender=name))
    assert len(found["step_seconds"]) == 4
    assert all(seconds > 0 for seconds in found["step_seconds"])
    head = built[0][0]
    assert head.step == 6  # two to warm up
    assert found["scores_per_example"] == head.scores_per_example > 0


def test_a_step_that_takes_too_long_ends_the_measurement(monkeypatch):
    clock = iter(range(0, 1000, 21))
    monkeypatch.setattr(step_times.time, "perf_counter", lambda: next(clock))
    assert time_steps(RUN)["skipped"] == "a step took 21 s, more than 20 s"


def test_a_head_that_cannot_be_built_is_recorded(monkeypatch):
    def refuse(run):
        raise UsageError("too few classes.")

    monkeypatch.setattr(step_times, "build_alone", refuse)
    assert time_steps(RUN)["skipped"] == "too few classes."


def test_times_are_extrapolated_from_fewer_classes():
    run = replace(RUN, num_classes=10_000)
    assert reason_to_skip(run, {}, MUCH) is None
    assert reason_to_skip(run, {1000: 1.9}, MUCH) is None
    words = "a step would take about 21 s, more than 20 s"
    assert reason_to_skip(run, {1000: 2.1}, MUCH) == words
    assert reason_to_skip(run, {100: 2.1, 1000: 2.1}, MUCH) is None  # it does not grow
    assert reason_to_skip(run, {100: 0.021, 1000: 0.21}, MUCH) is None
    assert reason_to_skip(run, {100: 0.021, 1000: 2.1}, MUCH).startswith("a step would take about")
    assert reason_to_skip(run, {1000: None}, MUCH) == "skipped with fewer classes already"


def test_memory_is_checked_first():
    run = replace(RUN, num_classes=2**20, dim=62)  # 4 * 2**20 * 128 bytes: half a GiB
    assert reason_to_skip(run, {}, 2**30) is None
    assert reason_to_skip(run, {}, 2**29) == (
        "needs about 0.5 GiB, more than 60% of the 0.5 GiB that are free"
    )


def test_all_are_measured_once(ledger, monkeypatch):
    seen = []
    measure_step_times(ledger, QUICK, lambda done, total: seen.append((done, total)))
    assert seen == [(done, 4) for done in range(5)]
    assert all(median_of(ledger[run]) > 0 for run in step_runs(QUICK))
    monkeypatch.setattr(step_times, "time_steps", None)
    measure_step_times(Ledger(ledger.path), QUICK, follow)


def test_a_killed_process_is_recorded_and_larger_sizes_are_not_tried(ledger, monkeypatch):
    def killed(ledger, runs, execute, progress, *, workers):
        raise BrokenProcessPool

    monkeypatch.setattr(step_times, "run_missing", killed)
    measure_step_times(ledger, QUICK, follow)
    words = [ledger[run]["skipped"] for run in step_runs(QUICK)]
    assert words == 2 * ["its process was killed, probably out of memory"] + 2 * [
        "skipped with fewer classes already"
    ]


def test_crossings_of_given_lines():
    flat = {100: 4.0, 10_000: 4.0, 1_000_000: 4.0}
    grows = {size: size / 1000 for size in flat}
    assert break_even(grows, flat) == pytest.approx(4000)
    assert break_even(flat, grows) == math.inf
    assert break_even(flat, {100: 1.0, 10_000: 1.0, 1_000_000: 1.0}) == 100
    # the last crossing counts
    assert 1000 < break_even({10: 2.0, 1000: 0.5, 10**5: 2.0}, {10: 1, 1000: 1, 10**5: 1}) < 10**5
    with pytest.raises(UsageError, match="nothing was measured with the same number of classes"):
        break_even({10: 1.0}, {20: 1.0})


@given(start=st.floats(1e-4, 1.0), power=st.floats(0.3, 2), part=st.floats(0.01, 0.99))
def test_power_laws_cross_at_the_exact_point(start, power, part):
    sizes = (1_000, 20_000, 1_000_000)
    crossing = 1_000 ** (1 + part)
    slow = {size: start * (size / crossing) ** power for size in sizes}
    assert break_even(slow, dict.fromkeys(sizes, start)) == pytest.approx(crossing, rel=1e-6)
