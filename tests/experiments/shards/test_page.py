"""The page and the figure say what is in the ledger."""

import pytest

from experiments.study_results import Claim
from experiments.synthetic.figures import draw_study
from experiments.synthetic.page import study_page
from tapas.errors import DataError


def accuracy(cell):
    if cell.method == "sampled":
        return 0.5
    return 0.6 - 0.03 * (cell.num_shards == 100) * (not cell.moving)


def line_of(page, start):
    return next(line for line in page.splitlines() if line.startswith(start))


def test_the_page_has_overlap_cost_and_load(made_up):
    study, ledger = made_up(accuracy, lambda n, m: 1 - m / (10 * n))
    page = study_page(study, ledger, [Claim("Close.", "shards", "partly", "because")])
    assert "| Close. | **partly** | because |" in page
    assert line_of(page, "| 10 | 0.9900").startswith(
        "| 10 | 0.9900 ± 0.0000 | 0.8816 | 0.1000 ± 0.0000 | 0.9990 ± 0.0000 | 0.96"
    )
    cost = line_of(page, "| n=100, r=8, top, 100 shards | -")
    assert cost.startswith("| n=100, r=8, top, 100 shards | -3.00 ± 0.00 | +0.000 ± 0.000 | 0.9000")
    anew = "| n=100, r=8, top, 100 shards, drawn anew in every step | +0.00 ± 0.00"
    assert line_of(page, anew)
    assert "+10.00 ± 0.00 points with n=100" in page
    assert line_of(page, "| 50 | 1.25").count("1.25 ± 0.00 | 1.50 ± 0.00") == 4
    assert "proposal by training counts to the power 0.75" in page
    assert "4,000 validation points" in page
    assert "Many shards take what was found for one." in page
    assert "ms a step" not in page  # virtual shards work one after the other


def test_the_figure_is_drawn_from_the_ledger_alone(made_up):
    study, ledger = made_up(accuracy)
    assert draw_study(study, ledger).startswith(b"\x89PNG")


def test_an_unfinished_study_is_not_drawn(made_up):
    study, ledger = made_up(accuracy)
    moving = study.experiment.cells[-1]
    ledger.results.pop(study.experiment.results(ledger, moving)[-1]["key"])
    with pytest.raises(DataError, match="1 of 4 seeds of n=100, r=8, top, 100 shards, drawn anew"):
        draw_study(study, ledger)
