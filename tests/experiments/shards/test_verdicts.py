"""Verdicts on shards follow from numbers: made-up ledgers with a known answer."""

import pytest

from experiments.shards.claims import (
    cut_costs_no_accuracy,
    looked_at,
    union_is_close_to_the_best,
)
from experiments.study_results import Book
from experiments.synthetic.experiment import Cell

BEST = 0.6


def steady(cell):
    return BEST


@pytest.mark.parametrize(
    ("at_ten", "verdict"), [(0.96, "reproduced"), (0.94, "partly"), (0.89, "not")]
)
def test_close_is_judged_where_n_is_a_hundred_times_m(made_up, at_ten, verdict):
    def overlap(n, m):
        if n == 1_000 and m <= 10:  # elsewhere n is not much larger than m
            return at_ten if m == 10 else 0.99
        return 0.3

    found, words = union_is_close_to_the_best(Book({"shards": made_up(steady, overlap)}))
    assert found == verdict
    assert f"n=1,000: 99.0 % with m=2, {100 * at_ten:.1f} % with m=10, 30.0 % with m=100" in words
    assert words.endswith(
        "counting predicts 98.8 % with m=10 and 96.1 % with m=100 for the paper's n=10,000"
    )


def test_close_must_hold_for_the_whole_interval(made_up):
    study, ledger = made_up(steady, lambda n, m: 0.97)
    for seed, result in enumerate(study.experiment.results(ledger, Cell("top", 1_000, 8))):
        for row in result["looks"]:
            row["overlap"] += 0.02 * (-1) ** seed  # ± 0.037 around 0.97
    assert union_is_close_to_the_best(Book({"shards": (study, ledger)}))[0] == "partly"


@pytest.mark.parametrize(
    ("loss", "spread", "verdict"),
    [(0.002, 0, "reproduced"), (0.002, 0.004, "partly"), (0.006, 0, "not")],
)
def test_the_cost_is_judged_at_the_largest_n_over_m(made_up, loss, spread, verdict):
    def accuracy(cell):
        if cell.num_shards == 1:
            return BEST
        return BEST - (loss if cell.num_samples == 1_000 and cell.num_shards == 10 else 0.1)

    study, ledger = made_up(accuracy)
    for cell in study.experiment.cells:
        for seed, result in enumerate(study.experiment.results(ledger, cell)):
            if cell.num_shards > 1:
                result["accuracy"] += spread * (-1) ** seed
    found, words = cut_costs_no_accuracy(Book({"shards": (study, ledger)}))
    assert found == verdict
    assert "n=100, m=10: -10.00" in words
    assert f"n=1,000, m=10: {-100 * loss:+.2f}" in words


def test_looks_are_gathered_by_placement_and_shards(made_up):
    study, ledger = made_up(steady, lambda n, m: 1 / m)
    results = study.experiment.results(ledger, study.experiment.cells[1])
    found = looked_at(results, "overlap", "random")
    assert list(found) == [1, 2, 3, 5, 10, 20, 50, 100]
    assert found[5].mean == pytest.approx(0.2)
    assert list(looked_at(results, "row_load", "contiguous")) == [2, 10, 50]
