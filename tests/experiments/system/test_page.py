"""The page and the figure say what is in the ledger."""

import dataclasses

import pytest
from oracle.pretended_jobs import SMALL, pretended

from experiments.study_results import Claim
from experiments.system.figure import draw_system, system_figure
from experiments.system.page import collisions_table, rates_table, system_page
from experiments.system.results import Findings


def half_as_fast_later(config, steps):
    return pretended(config, steps, slow=1 + (config.loop.seed == 2))


def test_the_table_has_ours_beside_the_papers(measured):
    headings, rows = rates_table(Findings(measured(half_as_fast_later)), "top")
    assert headings == [
        "n", "r", "steps a second", "the paper's", "overhead of r=8", "the paper's"
    ]  # fmt: skip
    assert rows == [
        ["16", "1", "181 (90.5 to 181)", "181", "–", "–"],
        ["16", "8", "173 (86.5 to 173)", "173", "+4.6 % (+4.6 to +4.6)", "+4.6 %"],
        ["128", "1", "92 (46 to 92)", "92", "–", "–"],
        ["128", "8", "81 (40.5 to 81)", "81", "+13.6 % (+13.6 to +13.6)", "+13.6 %"],
    ]


def test_priority_has_a_table_of_its_own(measured):
    _, rows = rates_table(Findings(measured()), "priority")
    assert rows[1][2:5] == ["121 (121 to 121)", "173", "+50.0 % (+50.0 to +50.0)"]
    assert rows[0][2] == "181 (181 to 181)"


def test_collisions_of_every_cell(measured):
    def answer(config, steps):
        return pretended(config, steps, collided=0.5 if steps == SMALL.steps else 0.25)

    _, rows = collisions_table(Findings(measured(answer)))
    assert [row[0] for row in rows] == [
        "n=16, r=1", "n=16, r=8, top", "n=16, r=8, priority",
        "n=128, r=1", "n=128, r=8, top", "n=128, r=8, priority",
    ]  # fmt: skip
    assert rows[3][1:] == ["138", "69 ± 0", "50.0 ± 0.0 %", "25.0 %", "2.5", "2.00"]


def test_the_page_has_verdicts_rules_tables_and_settings(measured):
    claims = [
        Claim("Cheap.", "system", "partly", "because"),
        Claim("Other.", "table-1", "not", "this"),
    ]
    page = system_page(Findings(measured()), claims)
    assert "| Cheap. | **partly** | because |" in page
    assert "Other." not in page
    assert "an overhead of at most 15 % is the paper's" in page
    assert "| 16 | 8 | 173 (173 to 173) | 173 | +4.6 % (+4.6 to +4.6) | +4.6 % |" in page
    assert "| n=16, r=8, top | 26 | 6 ± 0 |" in page
    assert "The paper's rule: the best n, every query scores." in page
    assert "Priority, this library's rule: 64 queries score." in page
    assert "300 users with 30 events each on average and 2,000 items" in page
    assert "4 steps to warm up, then 8 that are measured." in page
    assert "begins when all before it are done but the last 3." in page
    assert "Median of 3 rounds" in page


@pytest.mark.parametrize(("cores", "shared"), [(3, True), (4, False)])
def test_a_machine_with_too_few_cores_is_told(measured, cores, shared):
    ledger = measured(rounds=1)
    next(iter(ledger.results.values()))["cores"] = cores
    page = system_page(Findings(ledger), [])
    assert f"2 servers and 2 workers on one machine with {cores} cores" in page
    assert ("4 processes share 3 cores" in page) == shared


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_figure_is_drawn_from_the_findings_alone(measured, rounds):
    assert draw_system(Findings(measured(rounds=rounds))).startswith(b"\x89PNG")


def test_the_figure_shows_every_cell_and_the_paper(measured):
    figure = system_figure(Findings(measured(system=dataclasses.replace(SMALL, users=250))))
    times, shares = figure.axes
    texts = {text.get_text() for text in figure.texts}
    assert {"— the paper", "● sampled softmax", "● TAPAS top", "● TAPAS priority"} <= texts
    paper = next(
        line for line in times.lines if line.get_marker() == "_" and len(line.get_xdata()) == 4
    )
    assert list(paper.get_ydata()) == pytest.approx([1, 181 / 173, 181 / 92, 181 / 81])
    assert len(times.containers) == len(shares.containers) == 6
