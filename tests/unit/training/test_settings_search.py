"""Candidates of a search for settings, its rounds, and its page."""

from collections import Counter
from dataclasses import replace

import pytest
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st

from tapas.training.config import build_config
from tapas.training.search_page import search_page
from tapas.training.settings_search import (
    SearchPlan,
    Trial,
    best_candidate,
    draw_candidates,
    in_round,
    in_words,
    num_rounds,
    score_of,
    search_space,
    with_changes,
)

CONFIG = build_config(
    {
        "log": {"files": ["x"]},
        "model": {"encoder": "transformer", "dim": 128, "dropout": 0.5, "layers": 2},
        "head": {"method": "tapas", "num_samples": 1_000},
    }
)


def plan(number):
    return SearchPlan(1_800, 10, 7.0, tuple({"model.dim": n} for n in range(number)))


def simulated(plan, quality):
    """All trials of a search whose candidates have these qualities."""
    trials = []
    for number in range(1, plan.num_rounds + 1):
        for candidate in in_round(plan, trials, number):
            seconds = plan.trial_seconds * 2 ** (number - 1)
            trials.append(Trial(number, candidate, seconds, 5, quality[candidate]))
    return trials


def test_every_alternative_differs_from_what_was_chosen_and_can_be_built():
    for others in search_space(CONFIG, ()).values():
        for changes in others:
            assert with_changes(CONFIG, changes) != CONFIG
    assert {c["model.dim"] for c in search_space(CONFIG, ())["dimensions"]} == {64, 256}
    assert {c["model.dropout"] for c in search_space(CONFIG, ())["dropout"]} == {0.1, 0.3}


def test_what_was_given_is_not_searched():
    space = search_space(CONFIG, {"model.dim", "optimizer.encoder_lr", "model.history"})
    assert set(space) == {"dropout", "batch", "samples"}


def test_a_method_without_samples_searches_no_number_of_them():
    full = replace(
        CONFIG, head=build_config({"log": {"files": ["x"]}, "head": {"method": "full"}}).head
    )
    assert "samples" not in search_space(full, ())


@given(seed=st.integers(0, 2**40), number=st.sampled_from([2, 4, 8, 16]))
def test_candidates_are_distinct_and_the_first_changes_nothing(seed, number):
    found = draw_candidates(search_space(CONFIG, ()), number, seed)
    assert found[0] == {}
    assert len(found) == number
    assert all(one != other for i, one in enumerate(found) for other in found[:i])
    assert found == draw_candidates(search_space(CONFIG, ()), number, seed)


def test_a_small_space_has_fewer_candidates():
    axes = {"dimensions": [{"model.dim": 2}]}
    assert draw_candidates(axes, 16, 0) == ({}, {"model.dim": 2})


@pytest.mark.parametrize("number", [2, 4, 8, 16])
def test_rounds_halve_and_take_equal_time(number):
    found = plan(number)
    trials = simulated(found, [1 / (1 + n) for n in range(number)])
    sizes = Counter(trial.round for trial in trials)
    assert list(sizes.values()) == [number // 2**i for i in range(num_rounds(number))]
    spent = {n: sum(t.seconds for t in trials if t.round == n) for n in sizes}
    assert set(spent.values()) == {number * 7.0}


@given(st.permutations(range(8)))
def test_the_best_wins_if_trials_do_not_err(order):
    found = plan(8)
    trials = simulated(found, [n / 10 for n in order])
    assert best_candidate(found, trials) == order.index(7)


def test_what_was_chosen_from_the_log_is_in_every_round():
    found = plan(8)
    trials = simulated(found, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    assert [in_round(found, trials, number) for number in (2, 3)] == [[7, 6, 5, 0], [7, 0]]
    assert best_candidate(found, trials) == 7


def test_what_could_not_be_trained_loses_and_ties_go_to_the_first():
    found = plan(4)
    trials = simulated(found, [None, 0.2, 0.0, 0.2])
    assert in_round(found, trials, 2) == [1, 3]
    assert best_candidate(found, trials) == 1
    assert score_of(found, trials, 0) is None


def test_if_nothing_could_be_trained_the_first_problem_is_told():
    trials = [Trial(1, n, 7.0, 0, None, f"the loss is nan, {n}") for n in range(2)]
    with raises_text("no candidate could be trained: the loss is nan, 0"):
        best_candidate(plan(2), trials)


def test_settings_in_words():
    changes = {"model.encoder": "gru", "optimizer.rows_lr": 0.004}
    assert in_words(changes) == "model.encoder = gru, optimizer.rows_lr = 0.004"


def test_the_page_has_the_last_round_first_and_the_best_of_it_on_top():
    found = plan(4)
    trials = [*simulated(found, [0.1, 0.3, 0.2, 0.05])[:-1], Trial(2, 0, 14.0, 9, None, "<b>")]
    page = search_page(found, trials, 1)
    order = ["Chosen: model.dim = 1.", "Round 2: 14 s each", "0.3000", "&lt;b&gt;", "Round 1: 7 s"]
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    assert page.index("model.dim = 1", places[-1]) < page.index("model.dim = 0", places[-1])
