"""Verdicts and goals on real data, for fake sets with a known answer."""

import re

import pytest
from oracle.real_results import made_up_set, run_of

from experiments.claims import SetAnswer, claims_table
from experiments.real.cells import (
    PRIORITY,
    PRIORITY_8,
    SAMPLED,
    SAMPLED_2,
    SAMPLED_4,
    SAMPLED_8,
    TOP,
    TOP_8,
)
from experiments.real.claims import GOALS, check_real_claims, goals_table
from experiments.real.pace import MEASURED, Pace, Rows
from experiments.real.page import loss_page, map_page, pace_page
from experiments.real.sets import RUST, SETS
from tapas.errors import DataError

QUALITY = {
    SAMPLED: 0.1, SAMPLED_2: 0.12, SAMPLED_4: 0.14, SAMPLED_8: 0.16,
    TOP: 0.17, TOP_8: 0.18, PRIORITY: 0.159, PRIORITY_8: 0.165,
}  # fmt: skip


def quality(cell):
    return QUALITY.get(cell, 0.2)


def costs(change=()):
    cost = (
        dict.fromkeys(MEASURED, 1.0) | {SAMPLED_8: 2.0, TOP_8: 2.1, PRIORITY_8: 2.1} | dict(change)
    )
    return [
        Pace(c, [100 / cost[c]] * 3, [cost[c]] * 3, Rows(0, 200 + 100 * c.times)) for c in MEASURED
    ]


def evidence(tmp_path, quality=quality, loss=lambda cell: 9.0, paces=None, **options):
    measured = costs() if paces is None else paces
    return made_up_set(tmp_path / "made.jsonl", quality, loss, paces=measured, **options)


def worse_with_a_second_pass(cell):
    return 0.3 - 0.1 * (cell.r > 1)


def verdicts(*sets):
    return {claim.text: claim.verdict for claim in check_real_claims(sets)}


def test_results_like_the_papers_are_reproduced(tmp_path):
    def loss(cell):
        return 9.0 + 0.3 * (cell.method == "top")

    found = [evidence(tmp_path, loss=loss, real_set=each) for each in SETS.values()]
    assert set(verdicts(*found).values()) == {"reproduced"}
    assert set(verdicts(*found[1:]).values()) == {"partly"}  # one of the sets was not run


def test_results_in_which_no_claim_holds(tmp_path):
    slow = costs({SAMPLED_8: 1.1, TOP_8: 9.0, PRIORITY_8: 9.0})
    found = evidence(tmp_path, worse_with_a_second_pass, paces=slow)
    assert set(verdicts(found).values()) == {"not reproduced"}
    noisy = evidence(tmp_path, lambda c: 0.1 + 1e-4 * (c.r > 1), noise=0.05)
    assert verdicts(noisy)["At n MAP@20 rises with r from 1 to 8, priority."] == "not reproduced"


def test_a_claim_that_holds_on_one_of_two_sets_is_partly_reproduced(tmp_path):
    bad = evidence(tmp_path, worse_with_a_second_pass, real_set=RUST)
    claim = check_real_claims([evidence(tmp_path), bad])[0]
    assert claim.verdict == "partly"
    assert claim.evidence == "holds on 1 of 2 sets; the other 3 were not run"
    assert claim.sets == (
        SetAnswer("grocery", True, "+70.0 % (+70.0 to +70.0)"),
        SetAnswer("rust", False, "-33.3 % (-33.3 to -33.3)"),
    )
    assert claims_table([claim])[2:] == [
        f"| {claim.text} | **partly** | {claim.evidence} |",
        "| &emsp;grocery | yes | +70.0 % (+70.0 to +70.0) |",
        "| &emsp;rust | no | -33.3 % (-33.3 to -33.3) |",
    ]


def test_without_results_every_claim_is_missing_and_pages_can_be_written(tmp_path):
    found = evidence(tmp_path, paces=[])
    found.ledger.results.clear()
    claims = check_real_claims([found])
    assert {claim.verdict for claim in claims} == {"missing"}
    words = "not run yet: `python -m experiments figure-3` and `table-1` run it"
    assert claims[0].evidence == words
    for page in (map_page, loss_page, pace_page):
        assert "missing" in page([found], claims)


def answers(found):
    return {text: ask(found) for text, ask in GOALS}


def test_goals_that_are_missed_undecided_or_not_applicable(tmp_path):
    missed = evidence(
        tmp_path, lambda c: 0.16 - 0.07 * (c.r > 1) + 0.001 * c.times, lambda c: 9 + (c.r > 1)
    )
    assert not any(reached for reached, _ in answers(missed).values())
    rows = goals_table([evidence(tmp_path, paces=[])])
    assert rows[0] == "| goal | grocery |"
    left_open = [row.endswith("| – |") for row in rows[2:]]
    assert left_open == [False, False, False, False, True, True, False]
    level = evidence(tmp_path, lambda c: 0.1 + 0.01 * (c.r > 1), noise=0.05)
    assert "| no gap to close: 8 n is " in goals_table([level])[4]
    better = evidence(tmp_path, lambda c: 0.3 if c.r > 1 else quality(c))
    said = answers(better)["sampled softmax needs twice the rows for the same MAP@20"]
    assert said == (True, "more than 3.33 times, which 8 n has")


def test_one_seed_is_mentioned_and_cells_without_a_common_seed_are_not_compared(tmp_path):
    found = evidence(tmp_path)
    claims = {c.text: c.sets[0].evidence for c in check_real_claims([found])}
    few = "The softmax loss of n=8000, r=8 is above that of n=1000, r=1 (9.34, 9.10), the paper's "
    assert "one seed" in claims[f"{few}rule."]
    assert "one seed" not in claims["At n MAP@20 rises with r from 1 to 8, priority."]
    assert len(found.seeds(TOP_8)) == 1
    del found.ledger.results[run_of(found, SAMPLED, 0).key()]
    assert found.has(SAMPLED)
    assert not found.has(SAMPLED, TOP_8)


def test_a_result_of_another_version_is_an_error_and_an_unfinished_search_has_no_seeds(tmp_path):
    found = evidence(tmp_path)
    result = found.seeds(SAMPLED)[0]
    del result["blocks"]
    words = re.escape(f"the result with the key {result['key']} lacks")
    with pytest.raises(DataError, match=words):
        found.seeds(SAMPLED)
    del found.ledger.results[found.set_runs.trial(TOP, 0.3, 1.0).key()]
    assert not found.has(TOP)


def test_equal_time_is_unknown_if_the_slower_one_was_not_evaluated_within_it(tmp_path):
    found = evidence(
        tmp_path, paces=costs({PRIORITY: 9.0})
    )  # first evaluated after half of its steps
    assert found.at_equal_time(PRIORITY, SAMPLED) is None
