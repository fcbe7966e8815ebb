"""One run: what it trains is what it says."""

import re
from dataclasses import replace

import pytest
import torch

from experiments.synthetic.runs import Run, execute
from tapas.comparison.ledger import Ledger
from tapas.comparison.process_pool import finish
from tapas.errors import UsageError

RUN = Run(task="linear-quick", method="top", num_samples=8, presample_factor=2, lr=0.2, steps=40,
          seed=0, batch=16, evaluate_every=20)  # fmt: skip


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def without_time(result):
    return {k: v for k, v in result.items() if k != "train_seconds"}


def test_a_run_repeats_itself():
    assert without_time(execute(RUN)) == without_time(execute(RUN))
    assert execute(replace(RUN, seed=1))["curve"] != execute(RUN)["curve"]


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [None, 7])
def test_every_method_learns_something(hidden):
    for method in ("full", "top", "priority"):
        run = replace(RUN, method=method, hidden=hidden, steps=150, l2=0.001)
        result = execute(run)
        # chance is 1 in 100; 1,000 points: its standard error is 0.3 points
        assert result["accuracy"] > 0.01 + 5 * 0.0032
        assert [point[0] for point in result["curve"]] == [20, 40, 60, 80, 100, 120, 140, 150]


def test_with_r_one_both_rules_are_the_same_run():
    one = replace(RUN, presample_factor=1)
    ours, theirs = execute(one), execute(replace(one, method="priority"))
    assert ours["curve"] == theirs["curve"]


def test_shards_change_what_is_kept_and_moving_ones_do_so_differently():
    one = replace(RUN, steps=6, evaluate_every=6)
    sharded = replace(one, num_shards=4)
    curves = [execute(run)["curve"] for run in (one, sharded, replace(sharded, moving=True))]
    assert all(a != b for i, a in enumerate(curves) for b in curves[:i])


def test_a_look_after_the_run_changes_nothing_else():
    plain = replace(RUN, task="long-tail-quick", steps=4, evaluate_every=4)
    looked = execute(replace(plain, looks=1))
    rows = looked.pop("looks")
    assert [row["shards"] for row in rows] == [1, 2, 3, 5, 2]  # up to n = 8; 2 in order
    for name in ("accuracy", "cross_entropy", "curve"):
        assert looked[name] == execute(plain)[name]


def test_the_points_of_the_end_are_judged_once_where_a_curve_has_them_all():
    result = execute(replace(RUN, steps=2, evaluate_every=2))
    assert result["curve"][-1][1] == result["accuracy"]


def test_validation_and_test_points_differ():
    judged = execute(replace(RUN, judge="validation"))
    assert judged["cross_entropy"] != execute(RUN)["cross_entropy"]


def test_wrong_words_are_told():
    with pytest.raises(
        UsageError, match=re.escape("method must be full, top or priority, got 'best'.")
    ):
        replace(RUN, method="best")
    with pytest.raises(
        UsageError, match=re.escape("judge must be test or validation, got 'train'.")
    ):
        replace(RUN, judge="train")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_crew_does_what_is_missing_and_says_so(tmp_path, workers):
    ledger = Ledger(tmp_path / "results.jsonl")
    runs = [replace(RUN, seed=seed, steps=2) for seed in (0, 1, 2)]
    ledger.add(execute(runs[0]))
    said = []
    finish(ledger, runs, execute, lambda done, total: said.append((done, total)), workers=workers)
    assert said == [(2, 3), (3, 3)]
    assert not ledger.missing(runs)
    finish(ledger, runs, execute, lambda *_: pytest.fail("nothing was missing"), workers=workers)
