"""The runs of a set: settings are chosen on validation, by the same search for every method."""

from collections import Counter
from dataclasses import replace

import pytest

from experiments.real.cells import (
    ALPHAS,
    CELLS,
    FEWER_SEEDS,
    FIRST_ALPHA,
    FULL,
    LRS,
    PRIORITY,
    SAMPLED,
    SEARCH_SEED,
    SEEDS,
    SMALL_CELLS,
    TOP,
    TOP_8,
    SetRuns,
    larger_floor,
)
from experiments.real.sets import RUST, SETS
from tapas.comparison.ledger import Ledger
from tapas.errors import DataError

SET_RUNS = SetRuns(RUST)


class Known(Ledger):
    """A ledger in memory that records which runs are read."""

    def __init__(self):
        self.results, self.asked = {}, []

    def __getitem__(self, run):
        self.asked.append(run)
        return super().__getitem__(run)

    def know(self, run, score):
        self.results[run.key()] = {"key": run.key(), "run": {"seed": run.seed}, "map@20": score}


def searched(set_runs=SET_RUNS, scores=()):
    """A ledger with every possible trial; `scores` (cell, lr, alpha) raise some of them."""
    ledger = Known()
    for cell in CELLS:
        for lr in LRS:
            for alpha in ALPHAS:
                ledger.know(
                    set_runs.trial(cell, lr, alpha), dict(scores).get((cell, lr, alpha), 0.01)
                )
    return ledger


def test_the_learning_rate_is_that_of_sampled_softmax_and_alpha_is_searched_for_each_method():
    """Pairs outside of the search, and trials of other sizes, do not count."""
    scores = {
        (SAMPLED, 0.3, FIRST_ALPHA): 0.02,
        (SAMPLED, 1.0, 0.0): 0.9,
        (SAMPLED, 0.3, 0.5): 0.03,
        (TOP, 0.1, FIRST_ALPHA): 0.9,
        (TOP, 0.3, 1.0): 0.03,
        (PRIORITY, 0.3, 0.0): 0.03,
    }
    large = set(CELLS) - set(SMALL_CELLS)
    lures = {(cell, lr, alpha): 0.95 for cell in large for lr in LRS for alpha in ALPHAS}
    ledger = searched(scores=scores | lures)
    alphas = {"sampled": 0.5, "top": 1.0, "priority": 0.0, "full": FIRST_ALPHA}
    for cell in CELLS:
        assert SET_RUNS.best(ledger, cell) == (0.3, alphas[cell.method])


@pytest.mark.parametrize("cell", CELLS)
def test_a_search_reads_only_validation_results_of_the_search_seed(cell):
    ledger = searched()
    drawn = [SET_RUNS.run(cell, lr, a, seed) for lr in LRS for a in ALPHAS for seed in SEEDS]
    found = []
    for sign in (1, -1):
        for run in drawn:
            ledger.know(run, sign * (run.rows_lr + run.alpha + 100))
        found.append(SET_RUNS.best(ledger, cell))
    assert found[0] == found[1]
    for run in ledger.asked:
        assert (run.points, run.seed, run.steps) == ("validation", SEARCH_SEED, RUST.search_steps)
    assert SEARCH_SEED not in SEEDS


def test_every_method_has_the_same_alphas_at_the_same_learning_rate():
    ledger = searched(scores={(SAMPLED, 0.3, FIRST_ALPHA): 0.02})
    names = [stage.__name__ for stage in SET_RUNS.stages]
    # each needs the one before it
    assert names == ["references", "learning_rates", "alphas", "corrections", "final_runs"]
    rates, alphas = SET_RUNS.learning_rates(ledger), SET_RUNS.alphas(ledger)
    assert rates == [SET_RUNS.trial(SAMPLED, lr, FIRST_ALPHA) for lr in LRS]
    assert alphas == [SET_RUNS.trial(cell, 0.3, alpha) for cell in SMALL_CELLS for alpha in ALPHAS]
    assert {run.num_samples for run in (*rates, *alphas)} == {RUST.num_samples}
    start = SET_RUNS.trial(PRIORITY, *SET_RUNS.best(ledger, PRIORITY))
    assert SET_RUNS.corrections(ledger) == [
        replace(start, method=method)
        for method in ("priority, half corrected", "priority, not corrected")
    ]
    listed = {run.key() for run in SET_RUNS.searches(ledger)}
    ledger.asked.clear()
    for cell in CELLS:
        SET_RUNS.best(ledger, cell)
    assert {run.key() for run in ledger.asked} == listed
    assert SET_RUNS.searches(Known()) == SET_RUNS.learning_rates(Known())


@pytest.mark.parametrize("name", SETS)
def test_final_runs_are_ordered_by_seed_and_expensive_cells_have_fewer(name):
    set_runs = SetRuns(SETS[name])
    drawn = set_runs.final_runs(searched(set_runs))
    assert [run.seed for run in drawn] == sorted(run.seed for run in drawn)
    assert len({run.key() for run in drawn}) == len(drawn)
    found = Counter((run.method, run.num_samples) for run in drawn)
    for cell in CELLS:
        size = cell.num_samples(set_runs.real_set.num_samples)
        assert found.pop((cell.method, size), 0) == FEWER_SEEDS[name].get(cell, 3)
    assert not found
    assert {(run.points, run.steps) for run in drawn} == {("test", set_runs.real_set.steps)}


def test_an_unfinished_search_is_an_error():
    words = (
        "the search on rust is not finished; `python -m experiments figure-3` continues where it "
        "stopped."
    )
    without_rates, without_alphas = searched(), searched()
    del without_rates.results[SET_RUNS.trial(SAMPLED, LRS[-1], FIRST_ALPHA).key()]
    del without_alphas.results[SET_RUNS.trial(TOP, SET_RUNS.best_lr(without_alphas), 1.0).key()]
    for ask in (
        lambda: SET_RUNS.alphas(without_rates),
        lambda: SET_RUNS.best(without_rates, FULL),
        lambda: SET_RUNS.final_runs(without_alphas),
        lambda: SET_RUNS.best(without_alphas, TOP_8),
    ):
        with pytest.raises(DataError) as error:
            ask()
        assert str(error.value) == words
    assert SET_RUNS.best(without_alphas, PRIORITY)  # what is known of others is enough for them


def test_a_larger_floor_is_that_of_a_class_seen_a_hundred_times_if_below_1():
    ledger = searched(scores={(SAMPLED, 0.3, FIRST_ALPHA): 0.02, (PRIORITY, 0.3, 0.5): 0.03})
    assert larger_floor(SET_RUNS, ledger, 1_000_000) == [1e-4**0.5]
    assert larger_floor(SET_RUNS, ledger, 100) == []
