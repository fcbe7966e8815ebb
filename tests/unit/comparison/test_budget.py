"""The budget: equal time for all methods, settings chosen on validation, reasons for skipping."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapas.comparison.budget import SEARCH_SEED, RunBudget
from tapas.comparison.config import quick
from tapas.comparison.contenders import Trial
from tapas.comparison.ledger import Ledger
from tapas.data.source import LogSource
from tapas.errors import DataError

PACES = {"full": 0.02, "sampled": 0.001, "tapas": 0.003}


def budget():
    config = quick(budget_seconds=12.0, trials=4, seeds=3, least_steps=20)
    return RunBudget(config, 16, PACES)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "runs.jsonl")


def add(ledger, run, score, **more):
    ledger.add({"key": run.key(), "run": {}, "map@20": score, **more})


@given(
    pace=st.floats(1e-5, 1.0),
    budget=st.floats(1.0, 1e5),
    trials=st.integers(1, 8),
    seeds=st.integers(1, 9),
)
def test_every_contender_trains_for_the_budget_up_to_one_step_per_run(pace, budget, trials, seeds):
    config = quick(budget_seconds=budget, trials=trials, seeds=seeds)
    mine = RunBudget(config, 16, {"full": pace})
    for count, steps in ((trials, mine.trial_steps("full")), (seeds, mine.final_steps("full"))):
        left = budget / 2 - count * steps * pace
        assert -1e-9 * budget <= left <= count * pace * (1 + 1e-9)


def test_searches_have_equally_many_trials_on_validation_points():
    runs = budget().searches()
    for name in PACES:
        mine = [run for run in runs if run.contender == name]
        assert len({(run.rows_lr, run.knob) for run in mine}) == len(mine) == 4
    assert {run.points for run in runs} == {"validation"}
    assert {run.seed for run in runs} == {SEARCH_SEED}
    assert {run.contender: run.steps for run in runs} == {"full": 75, "sampled": 1500, "tapas": 500}
    assert {run.contender: run.num_samples for run in runs} == {
        "full": 0, "sampled": 16, "tapas": 16
    }  # fmt: skip


def test_the_best_trial_on_validation_is_chosen_but_never_a_diverged_one(ledger):
    mine = budget()
    for run in mine.searches():
        if (run.rows_lr, run.knob) == (1.0, 0.75):
            add(ledger, run, 0.9, diverged="the loss is nan")
        else:
            add(ledger, run, 0.5 if (run.rows_lr, run.knob) == (0.3, 1.0) else 0.1)
    assert mine.best(ledger, "tapas") == Trial(0.3, 1.0)
    assert mine.best(ledger, "full") == Trial(0.3, None)  # all equal: the first


def test_final_runs_are_ordered_by_seed_and_use_test_points(ledger):
    mine = budget()
    for run in mine.searches():
        add(ledger, run, run.rows_lr)
    finals = mine.finals(ledger)
    assert [(run.seed, run.contender) for run in finals] == [
        (seed, name) for seed in range(3) for name in PACES
    ]
    assert {run.points for run in finals} == {"test"}
    assert {run.contender: run.rows_lr for run in finals} == {
        "full": 3.0, "sampled": 1.0, "tapas": 1.0
    }  # fmt: skip
    assert {run.contender: run.steps for run in finals} == {
        "full": 100, "sampled": 2000, "tapas": 666
    }  # fmt: skip


def test_an_unfinished_search_is_an_error_and_a_method_without_a_trial_has_no_seeds(ledger):
    mine = budget()
    words = r"the search of 'full' is not finished; the same command continues where it stopped\."
    with pytest.raises(DataError, match=words):
        mine.finals(ledger)
    for run in mine.searches():
        more = {"diverged": "inf"} if run.contender == "full" else {}
        add(ledger, run, 0.1, **more)
    assert mine.best(ledger, "full") is None
    assert {run.contender for run in mine.finals(ledger)} == {"sampled", "tapas"}


def test_a_method_that_is_too_slow_is_reported_with_the_numbers():
    mine = RunBudget(
        quick(budget_seconds=12.0, trials=4, least_steps=20), 16, PACES | {"full": 0.1}
    )
    assert mine.running() == ["sampled", "tapas"]
    run, words = mine.too_slow()["full"]
    assert list(mine.too_slow()) == ["full"]
    assert (run.contender, run.points, run.steps) == ("full", "validation", 15)
    assert words == (
        "too slow for this budget: a step takes 0.1 s, so a run of 1.5 s has 15 steps, and at "
        "least 20 are needed"
    )
    assert "full" not in {run.contender for run in mine.searches()}
    seeds = quick(budget_seconds=12.0, trials=1, seeds=6, least_steps=20)
    many = RunBudget(seeds, 16, {"full": 0.1})  # the others have no pace and are left out
    assert (many.running(), list(many.too_slow())) == ([], ["full"])
    assert many.too_slow()["full"][1].endswith(
        "so a run of 1 s has 10 steps, and at least 20 are needed"
    )


def test_the_truth_is_a_reference_if_it_is_known():
    assert [run.contender for run in budget().references()] == [
        "most popular", "the user's favourites", "co-occurrence", "the true distribution"
    ]  # fmt: skip
    other = RunBudget(quick(made=None, log=LogSource(files=("a.csv",))), 16, PACES)
    assert "the true distribution" not in [run.contender for run in other.references()]
    assert {run.points for run in other.references()} == {"test"}
