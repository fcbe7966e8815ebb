"""The arithmetic of the table: ratios inside a round, collisions of a step, means over steps."""

import dataclasses

import pytest
from oracle.pretended_jobs import SMALL, pretended

from experiments.synthetic.experiment import Cell
from experiments.system.config import System
from experiments.system.results import (
    Findings,
    paper_overhead,
    paper_rates,
    sampled,
    spread,
)
from tapas import DataError


def slower_and_slower(config, steps):
    """Every round takes a second time longer than the one before."""
    return pretended(config, steps, slow=1 + config.loop.seed)


def test_steps_a_second_of_every_round(measured):
    found = Findings(measured(slower_and_slower))
    assert found.rates(sampled(16)) == pytest.approx([181, 181 / 2, 181 / 3])
    assert found.rates(Cell("priority", 128, 8)) == pytest.approx([46, 46 / 2, 46 / 3])


def test_overheads_are_taken_inside_a_round(measured):
    """The machine slows down three times: rates show it, ratios do not."""
    found = Findings(measured(slower_and_slower))
    assert found.overheads("top", 16) == pytest.approx([181 / 173 - 1] * 3)
    assert found.overheads("top", 128) == pytest.approx([92 / 81 - 1] * 3)
    assert found.overheads("priority", 16) == pytest.approx([0.5] * 3)
    assert found.slowdowns(sampled(128), sampled(16)) == pytest.approx([181 / 92] * 3)


def test_collisions_of_a_step_and_as_a_share(measured):
    def answer(config, steps):
        return pretended(config, steps, collided=0.5 if steps == SMALL.steps else 0.25)

    found = Findings(measured(answer, rounds=2))
    assert found.rows_pushed(sampled(128)) == [138, 138]
    assert found.rows_collided(sampled(128)) == [69, 69]
    assert found.collided_share(sampled(128)) == [0.5, 0.5]
    assert found.collided_share(Cell("top", 16, 8), "warm_up") == [0.25, 0.25]


def test_a_job_that_pushed_nothing_has_no_collision(measured):
    def answer(config, steps):
        return pretended(config, steps)._replace(rows_pushed=0, rows_collided=0, staleness={})

    found = Findings(measured(answer, rounds=1))
    assert found.collided_share(sampled(16)) == [0]
    assert found.staleness(sampled(16)) == [0]


def test_staleness_is_a_mean_over_pushes_and_traffic_is_of_a_step(measured):
    found = Findings(measured(rounds=1))
    assert found.staleness(sampled(16)) == [(2 * 1 + 6 * 3) / 8]
    assert found.sent_bytes(sampled(16)) == [2_000_000]


def test_the_papers_numbers_stand_beside_ours_by_n_and_r():
    assert paper_rates(System()) == {
        (1_000, 1): 181, (1_000, 8): 173, (8_000, 1): 92, (8_000, 8): 81
    }  # fmt: skip
    assert paper_rates(SMALL)[128, 8] == 81
    assert paper_overhead(System(), 1_000) == pytest.approx(0.046, abs=5e-4)
    assert paper_overhead(SMALL, 128) == pytest.approx(0.136, abs=5e-4)


def test_a_spread_is_median_and_range():
    assert spread([5.0, 1.0, 2.0, 3.0]) == (2.5, 1.0, 5.0)


def test_a_round_without_a_cell_is_told(measured):
    ledger = measured(rounds=1)
    next(iter(ledger.results.values()))["cells"].pop()
    with pytest.raises(DataError, match=r"is not what `python -m experiments table-1` writes"):
        Findings(ledger)


def test_cells_are_found_wherever_they_stand_in_a_round(measured):
    """Rounds begin with different cells."""
    found = Findings(measured(rounds=6, system=dataclasses.replace(SMALL, users=299)))
    assert found.rates(Cell("top", 128, 8)) == pytest.approx([81] * 6)
