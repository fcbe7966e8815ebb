"""Verdicts, goals and pages follow from numbers: made-up sets with a known answer."""

import math
import re

import pytest
from oracle.real_results import made_up_plan

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
from experiments.real.claims import judge_real_claims
from experiments.real.evidence import Evidence, needed, read_curve
from experiments.real.goals import GOALS, goals_table
from experiments.real.pace import MEASURED, Pace, Rows
from experiments.real.page import loss_page, map_page, pace_page
from experiments.real.sets import GROCERY, RUST, SETS
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
    plan, ledger = made_up_plan(tmp_path / "made.jsonl", quality, loss, **options)
    return Evidence(plan, ledger, costs() if paces is None else paces)


def verdicts(*sets):
    return {claim.text: claim.verdict for claim in judge_real_claims(sets)}


@pytest.mark.slow
def test_a_world_like_the_papers_is_reproduced(tmp_path):
    def loss(cell):
        return 9.0 + 0.3 * (cell.method == "top")

    found = [evidence(tmp_path, loss=loss, real_set=each) for each in SETS.values()]
    assert set(verdicts(*found).values()) == {"reproduced"}
    assert set(verdicts(*found[1:]).values()) == {"partly"}  # one of the sets was not run


def test_a_world_in_which_nothing_holds(tmp_path):
    found = evidence(
        tmp_path,
        lambda c: 0.3 - 0.1 * (c.r > 1),
        paces=costs({SAMPLED_8: 1.1, TOP_8: 9.0, PRIORITY_8: 9.0}),
    )
    assert set(verdicts(found).values()) == {"not"}


def test_a_claim_that_holds_on_one_of_two_sets_is_partly_reproduced(tmp_path):
    good = evidence(tmp_path)
    bad = evidence(tmp_path, lambda c: 0.3 - 0.1 * (c.r > 1), real_set=RUST)
    claim = judge_real_claims([good, bad])[0]
    assert claim.verdict == "partly"
    assert claim.evidence == (
        "on 1 of 2 sets that were run, of 5: grocery yes (+70.0 % (+70.0 to +70.0)), rust no "
        "(-33.3 % (-33.3 to -33.3))"
    )


def test_a_difference_inside_the_noise_is_none(tmp_path):
    found = evidence(tmp_path, lambda c: 0.1 + 1e-4 * (c.r > 1), noise=0.05)
    assert verdicts(found)["At n MAP@20 rises with r from 1 to 8, priority"] == "not"


def test_without_results_every_claim_is_missing_and_says_what_to_run(tmp_path):
    plan, ledger = made_up_plan(tmp_path / "made.jsonl", quality)
    ledger.results.clear()
    claims = judge_real_claims([Evidence(plan, ledger)])
    assert {claim.verdict for claim in claims} == {"missing"}
    assert (
        claims[0].evidence == "has not been run; `python -m experiments figure-3` and `table-1` do"
    )


def answers(found):
    return {text: ask(found) for text, ask in GOALS}


def test_goals_say_how_far_they_are(tmp_path):
    found = evidence(tmp_path, paces=costs({PRIORITY: 1.25}))
    said = list(answers(found).values())
    assert [answer.reached for answer in said] == [True] * 6
    assert said[0].words == "+59.0 % (+59.0 to +59.0)"
    assert said[1].words.startswith("0.98 (")
    assert said[2].words == "+0.000 (+0.000 to +0.000) nats"
    # 1.25 times as slow: read at 0.8 of its run, where the line from half to all is at 0.8
    assert said[3].words.startswith("+27.2 %")
    # rows of 4 n and 8 n are 600 and 1,000; read on a logarithmic scale
    rows = 600 * (1_000 / 600) ** ((0.159 - 0.14) / 0.02) / 300
    assert said[4].words == f"{rows:.2f} times; 8 n has 3.33"
    assert said[5].words.startswith("-0.6 %")


def test_a_gap_that_is_none_is_not_closed(tmp_path):
    found = evidence(tmp_path, lambda c: 0.1 + 0.01 * (c.r > 1), noise=0.05)
    said = answers(found)["closes at least half of the gap to sampled softmax with 8 n"]
    assert said.reached is None
    assert said.words.startswith("no gap to close: 8 n is ")
    assert "| no gap to close" in goals_table([found])[3]


def test_a_quality_that_sampled_softmax_never_reaches(tmp_path):
    found = evidence(tmp_path, lambda c: 0.3 if c.r > 1 else quality(c))
    said = answers(found)["sampled softmax needs twice the rows for the same MAP@20"]
    assert said == (True, "more than 3.33 times, which 8 n has")


def test_rows_are_compared_over_the_seeds_that_all_have(tmp_path):
    """Seeds 1 and 2, which the sizes between do not have, must not move what is asked for."""
    found = evidence(tmp_path)
    alone = found.rows_for(PRIORITY, (SAMPLED, SAMPLED_2, SAMPLED_4, SAMPLED_8))
    for result in found.seeds(PRIORITY)[1:]:
        result["blocks"]["map@20"] = [2 * block for block in result["blocks"]["map@20"]]
    assert found.rows_for(PRIORITY, (SAMPLED, SAMPLED_2, SAMPLED_4, SAMPLED_8)) == alone


def test_equal_time_takes_the_best_moment_of_both(tmp_path):
    """A run that ends in a dip does not make a slower one look good."""
    found = evidence(tmp_path, lambda c: 0.1, paces=costs({PRIORITY: 1.25}))
    for result in found.seeds(SAMPLED):
        first, last = result["curve"]
        first["blocks"] = [1.5 * block for block in last["blocks"]]
    change = found.at_equal_time(PRIORITY, SAMPLED)
    assert change.mean == pytest.approx(0.8 / 1.5 - 1)
    too_slow = evidence(tmp_path, lambda c: 0.1, paces=costs({PRIORITY: 2.5}))
    assert too_slow.at_equal_time(PRIORITY, SAMPLED) is None


def test_one_seed_is_said(tmp_path):
    claims = {c.text: c.evidence for c in judge_real_claims([evidence(tmp_path)])}
    assert "one seed" in claims["The softmax loss of n=8000, r=8 is above that of n=1000, r=1 "
                                "(9.34, 9.10), the paper's rule"]  # fmt: skip
    assert "one seed" not in claims["At n MAP@20 rises with r from 1 to 8, priority"]


def test_cells_without_a_common_seed_are_not_compared(tmp_path):
    found = evidence(tmp_path)
    assert len(found.seeds(TOP_8)) == 1
    del found.ledger.results[
        found.plan.run(SAMPLED, *found.plan.best(found.ledger, SAMPLED), 0).key()
    ]
    assert found.has(SAMPLED)
    assert not found.has(SAMPLED, TOP_8)
    judge_real_claims([found])


def test_a_result_of_another_version_is_named(tmp_path):
    found = evidence(tmp_path)
    result = found.seeds(SAMPLED)[0]
    del result["blocks"]
    with pytest.raises(
        DataError, match=re.escape(f"the result with the key {result['key']} lacks")
    ):
        found.seeds(SAMPLED)


def test_goals_that_are_missed(tmp_path):
    found = evidence(
        tmp_path, lambda c: 0.16 - 0.07 * (c.r > 1) + 0.001 * c.times, lambda c: 9 + (c.r > 1)
    )
    assert not any(answer.reached for answer in answers(found).values())


def test_goals_without_paces_are_left_open(tmp_path):
    rows = goals_table([evidence(tmp_path, paces=[])])
    assert rows[0] == "| goal | grocery |"
    assert [row.endswith("| – |") for row in rows[2:]] == [False, False, False, True, True, False]


def test_the_samples_needed_for_a_quality():
    known = [(1, 0.1), (2, 0.12), (8, 0.16)]
    assert needed(known, 0.05) == 1
    assert needed(known, 0.12) == 2
    assert needed(known, 0.14) == pytest.approx(4)
    assert math.isinf(needed(known, 0.2))


def test_a_curve_is_read_between_its_moments(tmp_path):
    found = evidence(tmp_path)
    result = found.seeds(SAMPLED)[0]
    steps = GROCERY.steps
    assert sum(read_curve(result, steps)["blocks"]["map@20"]) / 500 == pytest.approx(0.1)
    assert sum(read_curve(result, 0.75 * steps)["blocks"]["map@20"]) / 500 == pytest.approx(0.075)
    assert sum(read_curve(result, 0)["blocks"]["map@20"]) / 500 == pytest.approx(0.05)


def test_a_search_that_is_not_finished_has_no_seeds(tmp_path):
    plan, ledger = made_up_plan(tmp_path / "made.jsonl", quality)
    del ledger.results[plan.trial(TOP, 0.3, 1.0).key()]
    assert not Evidence(plan, ledger).has(SAMPLED)


def test_pages_say_what_is_in_the_ledgers(tmp_path):
    found = [evidence(tmp_path)]
    claims = judge_real_claims(found)
    page = map_page(found, claims)
    n = f"{GROCERY.num_samples:,}"
    row = (
        f"| sampled, n={n} | 0.1000 (0.1000 to 0.1000) | 3 | 0.3000 | 0.2000 | 0.500, 0.200, 0.100 "
        "| 10.0 % | 0.5 |"
    )
    assert row in page
    assert "sampled 0.2000, 0.3000, 0.2000, 0.2000" in page
    assert "9.000 (9.000 to 9.000)" in loss_page(found, claims)
    assert "50.0 (50.0 to 50.0) | 2.00 × (2.00 to 2.00) | 0 | 1,000 |" in pace_page(found, claims)


def test_a_plan_that_has_only_begun_has_pages_too(tmp_path):
    plan, ledger = made_up_plan(tmp_path / "made.jsonl", quality)
    ledger.results.clear()
    found = [Evidence(plan, ledger)]
    claims = judge_real_claims(found)
    for page in (map_page, loss_page, pace_page):
        assert "missing" in page(found, claims)
