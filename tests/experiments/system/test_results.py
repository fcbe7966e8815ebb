"""From rounds to numbers, verdicts and a figure: pretended jobs with a known answer."""

import dataclasses

import pytest
from oracle.pretended_jobs import SECONDS, SMALL, pretended

from experiments.synthetic.experiment import Cell, sampled
from experiments.system.claims import check_system_claims
from experiments.system.figure import system_figure
from experiments.system.page import system_page
from experiments.system.results import SystemResults
from tapas import DataError

TEXTS = (
    "at n=1000",
    "same at n=8000",
    "at n=1000",
    "same at n=8000",
    "Table 1",
    "Fewer",
    "same, p",
)


def slower_and_slower(config, steps):
    """Every round takes a second time longer than the one before."""
    return pretended(config, steps, slow=1 + config.loop.seed)


def test_ratios_are_taken_inside_a_round(measured):
    """The machine slows down three times: rates show it, ratios do not."""
    found = SystemResults(measured(slower_and_slower))
    assert found.rates(sampled(16)) == pytest.approx([181, 181 / 2, 181 / 3])
    assert found.overheads("top", 16) == pytest.approx([181 / 173 - 1] * 3)
    assert found.overheads("top", 128) == pytest.approx([92 / 81 - 1] * 3)
    assert found.overheads("priority", 16) == pytest.approx([0.5] * 3)
    assert found.slowdowns(sampled(128), sampled(16)) == pytest.approx([181 / 92] * 3)


def test_collisions_of_a_step_and_as_a_share(measured):
    def answer(config, steps):
        return pretended(config, steps, collided=0.5 if steps == SMALL.steps else 0.25)

    found = SystemResults(measured(answer, rounds=2))
    assert found.rows_pushed(sampled(128)) == [138, 138]
    assert found.rows_collided(sampled(128)) == [69, 69]
    assert found.collided_share(sampled(128)) == [0.5, 0.5]
    assert found.collided_share(Cell("top", 16, 8), "warm_up") == [0.25, 0.25]
    assert found.staleness(sampled(16)) == [(2 * 1 + 6 * 3) / 8] * 2
    assert found.sent_bytes(sampled(16)) == [2_000_000] * 2


def test_a_job_that_pushed_nothing_has_no_collision(measured):
    def answer(config, steps):
        return pretended(config, steps)._replace(rows_pushed=0, rows_collided=0, staleness={})

    found = SystemResults(measured(answer, rounds=1))
    assert found.collided_share(sampled(16)) == [0]
    assert found.staleness(sampled(16)) == [0]


def test_a_round_without_a_cell_is_told(measured):
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


def test_the_papers_own_numbers_are_reproduced(measured):
    top_1, top_8, priority_1, priority_8, table, *_ = verdicts(measured())
    assert [c.verdict for c in (top_1, top_8, table)] == ["reproduced"] * 3
    assert top_1.evidence == "n=16: +4.6 % (+4.6 to +4.6) over 3 rounds; the paper +4.6 %"
    assert top_8.evidence == "n=128: +13.6 % (+13.6 to +13.6) over 3 rounds; the paper +13.6 %"
    assert priority_1.evidence.startswith("n=16: +50.0 %")
    assert [c.verdict for c in (priority_1, priority_8)] == ["not", "not"]
    assert table.evidence == (
        "181, 173, 92, 81 steps a second (the paper 181, 173, 92, 81); 8 n takes 1.97 × the time "
        "with r=1 and 2.14 × with r=8 (the paper 1.97 × and 2.14 ×)"
    )


@pytest.mark.parametrize(
    ("overheads", "verdict"),
    [((0.1, 0.149, 9), "reproduced"), ((0, 0.16, 0.2), "partly"), ((0, 0.31, 0.32), "not")],
)
def test_an_overhead_is_judged_by_its_median(measured, overheads, verdict):
    def answer(config, steps):
        found = pretended(config, steps)
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
        ({(1, "top", 8): 1 / 91}, "not"),  # out of order, and 8 n only 1.12 times slower at r=8
    ],
)
def test_the_table_is_judged_by_its_order_and_what_n_costs(measured, changed, verdict):
    def answer(config, steps):
        found = pretended(config, steps)
        return found._replace(seconds=steps * changed.get(cell_of(config), found.seconds / steps))

    found = verdicts(measured(answer, rounds=2))[4]
    assert found.verdict == verdict, found.evidence


@pytest.mark.parametrize(
    ("share", "noise", "verdict"),
    [
        (0.2, 0.001, "reproduced"),  # fewer rows, and a smaller part of them
        (0.3, 0.001, "partly"),  # fewer rows, but a larger part of them
        (1.0, 0.0, "partly"),  # 26 of 26 against 34.5 of 138
        (0.2, 0.15, "partly"),  # the share is too noisy to tell, the number is not
        (6.0, 0.001, "not"),  # 156 against 34.5
    ],
)
def test_collisions_are_judged_by_number_and_share(measured, share, noise, verdict):
    def answer(config, steps):
        mine = share + noise * (-1) ** config.loop.seed
        options = config.head.options
        fewer = (options["num_samples"], options["presample_factor"]) == (16, 8)
        found = pretended(config, steps, collided=mine if fewer else 0.25)
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
def test_a_machine_with_too_few_cores_is_told(measured, cores, shared):
    ledger = measured(rounds=1)
    next(iter(ledger.results.values()))["cores"] = cores
    page = system_page(SystemResults(ledger), [])
    assert f"2 servers and 2 workers on one machine with {cores} cores" in page
    assert ("4 processes share 3 cores" in page) == shared


def test_the_figure_shows_every_cell_and_the_paper(measured):
    figure = system_figure(SystemResults(measured(system=dataclasses.replace(SMALL, users=250))))
    times, shares = figure.axes
    texts = {text.get_text() for text in figure.texts}
    assert {"— the paper", "● sampled softmax", "● TAPAS top", "● TAPAS priority"} <= texts
    paper = next(
        line for line in times.lines if line.get_marker() == "_" and len(line.get_xdata()) == 4
    )
    assert list(paper.get_ydata()) == pytest.approx([1, 181 / 173, 181 / 92, 181 / 81])
    assert len(times.containers) == len(shares.containers) == 6
