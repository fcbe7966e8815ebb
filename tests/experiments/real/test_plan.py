"""What is run: settings come from validation alone, and every method is searched alike."""

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
    PRIORITY_8,
    SAMPLED,
    SAMPLED_2,
    SAMPLED_4,
    SAMPLED_8,
    SAMPLED_64,
    SEARCH_SEED,
    SEEDS,
    SMALL_CELLS,
    TOP,
    TOP_8,
    Plan,
    R,
)
from experiments.real.sets import GROCERY, RUST, SETS
from tapas.comparison.ledger import Ledger
from tapas.errors import DataError

PLAN = Plan(RUST)


class Known(Ledger):
    """A ledger in memory that remembers which runs it was asked for."""

    def __init__(self):
        self.results, self.asked = {}, []

    def __getitem__(self, run):
        self.asked.append(run)
        return super().__getitem__(run)

    def know(self, run, score):
        self.results[run.key()] = {"key": run.key(), "run": {"seed": run.seed}, "map@20": score}


def searched(plan=PLAN, scores=None):
    """A ledger with every trial there could be; `scores` (cell, lr, alpha) lift some of them."""
    ledger = Known()
    for cell in CELLS:
        for lr in LRS:
            for alpha in ALPHAS:
                score = (scores or {}).get((cell, lr, alpha), 0.01)
                ledger.know(plan.trial(cell, lr, alpha), score)
    return ledger


@pytest.mark.parametrize("cell", SMALL_CELLS)
@pytest.mark.parametrize("lr", LRS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_best_of_every_setting_is_taken(cell, lr, alpha):
    ledger = searched(scores={(SAMPLED, lr, FIRST_ALPHA): 0.02, (cell, lr, alpha): 0.03})
    assert PLAN.best_lr(ledger) == lr
    assert PLAN.best(ledger, cell) == (lr, alpha)


def test_the_learning_rate_is_that_of_sampled_softmax_then_alpha_is_a_methods_own():
    """A better pair that was never on the way is not seen; what diverged is not taken."""
    scores = {
        (SAMPLED, 0.3, FIRST_ALPHA): 0.02,
        (SAMPLED, 1.0, 0.0): 0.9,
        (SAMPLED, 0.3, 0.5): 0.03,
        (TOP, 0.1, FIRST_ALPHA): 0.9,
        (TOP, 0.3, 1.0): 0.03,
    }
    ledger = searched(scores=scores)
    assert PLAN.best(ledger, SAMPLED) == (0.3, 0.5)
    assert PLAN.best(ledger, TOP) == (0.3, 1.0)
    broken = {(SAMPLED, lr, FIRST_ALPHA): 0.0 for lr in LRS} | {(SAMPLED, 1.0, FIRST_ALPHA): 1e-6}
    assert PLAN.best(searched(scores=broken), PRIORITY)[0] == 1.0


@pytest.mark.parametrize("cell", CELLS)
def test_a_search_reads_validation_results_of_its_own_seed_only(cell):
    ledger = searched()
    for lr in LRS:
        for alpha in ALPHAS:
            for seed in SEEDS:
                ledger.know(PLAN.run(cell, lr, alpha, seed), lr + alpha + 100)
    settings = PLAN.best(ledger, cell)
    assert ledger.asked
    for run in ledger.asked:
        assert (run.points, run.seed, run.steps) == ("validation", SEARCH_SEED, RUST.search_steps)
    for lr in LRS:
        for alpha in ALPHAS:
            for seed in SEEDS:
                ledger.know(PLAN.run(cell, lr, alpha, seed), -lr - alpha)
    assert PLAN.best(ledger, cell) == settings


@pytest.mark.parametrize("lr", LRS)
def test_other_numbers_of_samples_take_both_settings_from_n(lr):
    """Whatever trials of their own would say."""
    scores = {
        (SAMPLED, lr, FIRST_ALPHA): 0.02,
        (SAMPLED, lr, 0.5): 0.03,
        (TOP, lr, 1.0): 0.03,
        (PRIORITY, lr, 0.0): 0.03,
    }
    large = set(CELLS) - set(SMALL_CELLS)
    lures = {(cell, other, a): 0.9 for cell in large for other in LRS for a in ALPHAS if a != 0.5}
    ledger = searched(scores=scores | lures)
    for cell in (SAMPLED, SAMPLED_2, SAMPLED_4, SAMPLED_8, SAMPLED_64):
        assert PLAN.best(ledger, cell) == (lr, 0.5)
    assert PLAN.best(ledger, TOP_8) == PLAN.best(ledger, TOP) == (lr, 1.0)
    assert PLAN.best(ledger, PRIORITY_8) == PLAN.best(ledger, PRIORITY) == (lr, 0.0)
    assert PLAN.best(ledger, FULL)[0] == lr


def test_every_method_has_the_same_alphas_at_the_same_learning_rate():
    ledger = searched(scores={(SAMPLED, 0.3, FIRST_ALPHA): 0.02})
    names = [stage.__name__ for stage in PLAN.stages]
    # each needs the one before it
    assert names == ["references", "learning_rates", "alphas", "corrections", "drawn"]
    rates, alphas = PLAN.learning_rates(ledger), PLAN.alphas(ledger)
    assert [(run.method, run.rows_lr, run.alpha) for run in rates] == [
        ("sampled", lr, FIRST_ALPHA) for lr in LRS
    ]
    assert [(run.method, run.presample_factor, run.rows_lr, run.alpha) for run in alphas] == [
        (method, r, 0.3, alpha)
        for method, r in (("sampled", 1), ("top", R), ("priority", R))
        for alpha in ALPHAS
    ]
    assert {run.num_samples for run in (*rates, *alphas)} == {RUST.num_samples}
    assert FIRST_ALPHA in ALPHAS  # so that one of the first stage counts in the second
    start = PLAN.trial(PRIORITY, *PLAN.best(ledger, PRIORITY))
    for run, method in zip(
        PLAN.corrections(ledger),
        ("priority, half corrected", "priority, not corrected"),
        strict=True,
    ):
        assert run == replace(start, method=method)


def test_searches_are_all_that_best_looks_at():
    ledger = searched(scores={(SAMPLED, 0.3, FIRST_ALPHA): 0.02})
    listed = {run.key() for run in PLAN.searches(ledger)}
    for cell in CELLS:
        PLAN.best(ledger, cell)
    assert {run.key() for run in ledger.asked} == listed
    assert len(listed) == len(LRS) + 3 * len(ALPHAS) - 1
    assert PLAN.searches(Known()) == PLAN.learning_rates(Known())


@pytest.mark.parametrize("name", SETS)
def test_seeds_are_outermost_and_expensive_cells_get_fewer(name):
    plan = Plan(SETS[name])
    drawn = plan.drawn(searched(plan))
    assert [run.seed for run in drawn] == sorted(run.seed for run in drawn)
    assert len({run.key() for run in drawn}) == len(drawn)
    found = Counter((run.method, run.num_samples) for run in drawn)
    n = plan.real_set.num_samples
    for cell in CELLS:
        size = 0 if cell.method == "full" else cell.times * n
        want = FEWER_SEEDS[name].get(cell, 3)
        assert found.pop((cell.method, size), 0) == want
        assert plan.cells().get(cell, ()) == SEEDS[:want]
    assert not found
    assert {(run.points, run.steps) for run in drawn} == {("test", plan.real_set.steps)}


def test_a_trial_never_uses_a_seed_that_is_drawn():
    ledger = searched()
    trials = [*PLAN.learning_rates(ledger), *PLAN.alphas(ledger)]
    assert {run.seed for run in trials} == {SEARCH_SEED}
    assert SEARCH_SEED not in SEEDS
    assert not {run.key() for run in trials} & {run.key() for run in PLAN.drawn(ledger)}


def test_a_search_that_is_not_finished_is_told():
    words = (
        "the search on rust is not finished; `python -m experiments figure-3` continues where it "
        "stopped."
    )
    without_rates, without_alphas = searched(), searched()
    del without_rates.results[PLAN.trial(SAMPLED, LRS[-1], FIRST_ALPHA).key()]
    lr = PLAN.best_lr(without_alphas)
    del without_alphas.results[PLAN.trial(TOP, lr, 1.0).key()]
    for ask in (
        lambda: PLAN.alphas(without_rates),
        lambda: PLAN.best(without_rates, FULL),
        lambda: PLAN.drawn(without_alphas),
        lambda: PLAN.best(without_alphas, TOP_8),
    ):
        with pytest.raises(DataError) as error:
            ask()
        assert str(error.value) == words
    assert PLAN.best(without_alphas, PRIORITY)  # what is known of others is enough for them


def test_cells_in_words():
    assert SAMPLED_8.words(1_000) == "sampled, n=8,000"
    assert PRIORITY.words(128) == "priority, n=128, r=8"
    assert FULL.words(128) == "full softmax"
    assert {cell.r for cell in CELLS if cell.method in ("top", "priority")} == {R} == {8}


def test_full_softmax_has_no_samples_and_quick_runs_have_other_keys():
    run = Plan(GROCERY).run(FULL, 0.1, 0.75, 0)
    assert (run.method, run.num_samples, run.presample_factor) == ("full", 0, 1)
    quick = Plan(GROCERY, quick=True)
    short = quick.run(TOP, 0.1, 0.75, 0)
    assert (short.set, short.quick, short.num_samples) == ("grocery", True, 16)
    assert (short.steps, short.batch) == (12, 8)
    assert quick.trial(TOP, 0.1, 0.75).steps == 6
    assert short.key() != Plan(GROCERY).run(TOP, 0.1, 0.75, 0).key()
