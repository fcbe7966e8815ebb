"""One run of a synthetic experiment: reproducible, and trained with its settings."""

import re
from dataclasses import replace

import pytest

from experiments.synthetic.runs import Run, execute
from tapas.errors import UsageError

RUN = Run(task="linear-quick", method="top", num_samples=8, presample_factor=2, lr=0.2, steps=40,
          seed=0, batch=16, evaluate_every=20)  # fmt: skip


def without_time(result):
    return {k: v for k, v in result.items() if k != "train_seconds"}


def test_a_run_is_reproducible():
    assert without_time(execute(RUN)) == without_time(execute(RUN))
    assert execute(replace(RUN, seed=1))["curve"] != execute(RUN)["curve"]


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


def test_shards_change_the_result_and_moving_ones_change_it_differently():
    one = replace(RUN, steps=6, evaluate_every=6)
    sharded = replace(one, num_shards=4)
    curves = [execute(run)["curve"] for run in (one, sharded, replace(sharded, moving=True))]
    assert all(a != b for i, a in enumerate(curves) for b in curves[:i])


def test_measuring_overlap_after_the_run_changes_nothing_else():
    plain = replace(RUN, task="long-tail-quick", steps=4, evaluate_every=4)
    looked = execute(replace(plain, looks=1))
    rows = looked.pop("looks")
    assert [row["shards"] for row in rows] == [1, 2, 3, 5, 2]  # up to n = 8; 2 in order
    for name in ("accuracy", "cross_entropy", "curve"):
        assert looked[name] == execute(plain)[name]


def test_a_run_is_evaluated_on_its_split_and_once_if_the_curve_has_all_points():
    short = replace(RUN, steps=2, evaluate_every=2)
    result = execute(short)
    assert result["curve"][-1][1] == result["accuracy"]
    assert execute(replace(short, judge="validation"))["cross_entropy"] != result["cross_entropy"]


def test_wrong_names_are_an_error():
    with pytest.raises(
        UsageError, match=re.escape("method must be full, top or priority, got 'best'.")
    ):
        replace(RUN, method="best")
    with pytest.raises(
        UsageError, match=re.escape("judge must be test or validation, got 'train'.")
    ):
        replace(RUN, judge="train")


def test_every_setting_is_part_of_the_key():
    keys = {RUN.key()}
    for change in (
        {"method": "priority"}, {"num_samples": 5}, {"presample_factor": 3}, {"lr": 0.3},
        {"temperature": 0.5}, {"anneal_to": 0.1}, {"steps": 4}, {"seed": 1}, {"batch": 9},
        {"l2": 0.1}, {"hidden": 3}, {"evaluate_every": 1}, {"judge": "validation"},
        {"task": "linear"}, {"num_shards": 2}, {"moving": True}, {"looks": 1},
    ):  # fmt: skip
        keys.add(replace(RUN, **change).key())
    assert len(keys) == 18
