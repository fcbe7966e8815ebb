"""Numbers, verdicts and the figure of Table 1, for fake jobs with a known answer."""

import pytest
from oracle.fake_jobs import SECONDS, fake_segment

from experiments.synthetic.experiment import sampled
from experiments.system.claims import check_system_claims
from experiments.system.figure import system_figure
from experiments.system.page import system_page
from experiments.system.results import SystemResults
from tapas import DataError

TEXTS = (
    "at n=1000",
    "at n=8000",
    "at n=1000",
    "at n=8000",
    "Table 1",
    "Fewer",
    "Fewer",
)


def test_a_job_that_pushed_nothing_has_no_collision(measured):
    def answer(config, steps):
        return fake_segment(config, steps)._replace(rows_pushed=0, rows_collided=0, staleness={})

    found = SystemResults(measured(answer, rounds=1))
    assert found.collided_share(sampled(16)) == [0]
    assert found.staleness(sampled(16)) == [0]


def test_a_round_without_a_cell_is_an_error(measured):
    ledger = measured(rounds=1)
    next(iter(ledger.results.values()))["cells"].pop()
    with pytest.raises(DataError, match=r"is not what `python -m experiments table-1` writes"):
        SystemResults(ledger)


def verdicts(ledger):
    claims = check_system_claims(ledger)
    assert all(words in claim.text for words, claim in zip(TEXTS, claims, strict=True))
    assert {claim.study for claim in claims} == {"system"}
    return claims


def cell_of(config):
    options = config.head.options
    return (options["num_samples"] // 16, options["selection"], options["presample_factor"])


@pytest.mark.parametrize(
    ("overheads", "verdict"),
    [
        ((0.1, 0.149, 9), "reproduced"),
        ((0, 0.16, 0.2), "partly"),
        ((0, 0.31, 0.32), "not reproduced"),
    ],
)
def test_the_verdict_on_an_overhead_uses_its_median(measured, overheads, verdict):
    def answer(config, steps):
        found = fake_segment(config, steps)
        if cell_of(config) == (1, "top", 8):
            seconds = steps * SECONDS[1, "top", 1] * (1 + overheads[config.loop.seed])
            return found._replace(seconds=seconds)
        return found

    claim = verdicts(measured(answer))[0]
    assert claim.verdict == verdict
    assert f"{100 * overheads[1]:+.1f} %" in claim.evidence


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({(8, "top", 1): 1 / 110}, "reproduced"),  # 1.65 times slower
        ({(8, "top", 1): 1 / 125}, "partly"),  # 1.45 times: the order alone
        ({(1, "top", 8): 1 / 190}, "partly"),  # r=8 is faster: not the order
        (
            {(1, "top", 8): 1 / 91},
            "not reproduced",
        ),  # out of order, and 8 n only 1.12 times slower at r=8
    ],
)
def test_the_verdict_on_the_table_uses_its_order_and_the_cost_of_n(measured, changed, verdict):
    def answer(config, steps):
        found = fake_segment(config, steps)
        return found._replace(seconds=steps * changed.get(cell_of(config), found.seconds / steps))

    found = verdicts(measured(answer, rounds=2))[4]
    assert found.verdict == verdict, found.evidence


@pytest.mark.parametrize(
    ("share", "noise", "verdict"),
    [
        (0.2, 0.001, "reproduced"),  # fewer rows, and a smaller part of them
        (0.3, 0.001, "partly"),  # fewer rows, but a larger part of them
        (1.0, 0.0, "partly"),  # 26 of 26 against 34.5 of 138
        (0.2, 0.15, "partly"),  # the share is too noisy, the number is not
        (6.0, 0.001, "not reproduced"),  # 156 against 34.5
    ],
)
def test_the_verdict_on_collisions_uses_number_and_share(measured, share, noise, verdict):
    def answer(config, steps):
        mine = share + noise * (-1) ** config.loop.seed
        options = config.head.options
        fewer = (options["num_samples"], options["presample_factor"]) == (16, 8)
        found = fake_segment(config, steps, collided=mine if fewer else 0.25)
        return found._replace(rows_pushed=1_000 * found.rows_pushed,
                              rows_collided=1_000 * found.rows_collided)  # fmt: skip

    claims = verdicts(measured(answer, rounds=4))[5:]
    assert [claim.verdict for claim in claims] == [verdict] * 2
    assert "n=128, r=1: 34,500 of 138,000 rows pushed in a step (25.0 %) with 2.5 updates" in (
        claims[0].evidence
    )


def test_one_round_has_no_interval(measured):
    number = verdicts(measured(rounds=1))[5]
    assert number.verdict == "missing"
    assert (
        number.evidence
        == "one round has no interval. `python -m experiments table-1` measures more."
    )


@pytest.mark.parametrize(("cores", "shared"), [(3, True), (4, False)])
def test_a_machine_with_too_few_cores_is_mentioned(measured, cores, shared):
    ledger = measured(rounds=1)
    next(iter(ledger.results.values()))["cores"] = cores
    page = system_page(SystemResults(ledger), [])
    assert f"2 servers and 2 workers on one machine with {cores} cores" in page
    assert ("4 processes share 3 cores" in page) == shared


def test_a_quick_figure_has_none_of_the_papers_marks(measured):
    found = SystemResults(measured(rounds=2))

    def texts(*, quick):
        return [text.get_text() for text in system_figure(found, quick=quick).axes[0].texts]

    papers = [text for text in texts(quick=False) if text not in texts(quick=True)]
    assert papers == ["1.00 paper", "1.05", "1.97", "2.23"]
