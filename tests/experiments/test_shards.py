"""The study on shards: expected and measured overlap, verdicts, page and figure."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracle.study_results import finished_study
from scipy import stats
from torch import nn

from experiments.shards.overlap import IN_ORDER, SHARDS, expected_overlap, measure_overlap
from experiments.synthetic.claims import (
    StudyResults,
    cut_costs_no_accuracy,
    union_is_close_to_the_best,
)
from experiments.synthetic.experiment import Cell, run_experiment
from experiments.synthetic.figures import draw_study
from experiments.synthetic.long_tail import Examples
from experiments.synthetic.page import study_page
from experiments.synthetic.studies import STUDIES
from tapas.comparison.ledger import Ledger
from tapas.errors import DataError, UsageError
from tapas.heads import TapasSoftmax
from tapas.rng import stream
from tapas.tables import LocalTable
from tapas.tables.placement import Placement

C, D, N, BEST = 41, 3, 8, 0.6
SPLIT = Examples(torch.randn(50, D, generator=stream(0, "x")), torch.arange(50) % C)


@pytest.mark.parametrize(("num_classes", "n", "m"), [(31, 7, 3), (10, 9, 4), (997, 100, 100)])
def test_expected_overlap_is_the_mean_of_hypergeometric_numbers_capped_at_n_over_m(
    num_classes, n, m
):
    placement = Placement(num_classes, m)
    total = 0.0
    for shard in range(m):
        keep = n // m + (shard < n % m)
        chance = stats.hypergeom(num_classes, n, placement.size(shard))
        hits = np.arange(n + 1)
        total += float((np.minimum(hits, keep) * chance.pmf(hits)).sum())
    assert math.isclose(expected_overlap(num_classes, n, m), total / n, rel_tol=1e-9)


def test_the_short_formula_holds_at_the_papers_sizes_and_the_ends_are_exact():
    for m in (10, 100):
        short = 1 - math.sqrt((m - 1) / (2 * math.pi * 10_000))
        assert abs(expected_overlap(1_000_000, 10_000, m) - short) < 0.02 * (1 - short)
    assert expected_overlap(50, 20, 1) == pytest.approx(1)
    assert expected_overlap(6, 6, 3) == pytest.approx(1)
    with pytest.raises(UsageError, match="cannot spread 5 classes over 6 shards"):
        expected_overlap(5, 2, 6)


def head_of(num_shards=1, bias=None, **options):
    """A head whose pool is every class; rows are small, so that biases decide which are best."""
    table = LocalTable(C, D, num_shards=num_shards, row_optimizer=None)
    with torch.no_grad():
        table.weight.mul_(1e-3)
        table.bias.copy_(torch.arange(C).float() if bias is None else bias)
    return TapasSoftmax(
        table=table, num_samples=N, presample_factor=6, selection="top", **options
    )  # fmt: skip


def by_placement(rows):
    return {(row["placement"], row["shards"]): row for row in rows}


def test_overlap_is_the_share_of_the_best_that_shards_keep():
    rows = by_placement(measure_overlap(nn.Identity(), head_of(), SPLIT, draws=2))
    one = rows["random", 1]
    assert one["overlap"] == one["kept"] == one["pool_load"] == one["row_load"] == 1
    assert rows["contiguous", 2]["overlap"] == 0.5  # the best 8 are 33 .. 40, all in one half
    assert rows["contiguous", 2]["kept"] == 1
    assert ("contiguous", 10) not in rows  # more shards than classes kept
    even = torch.zeros(C)
    even[[0, 1, 2, 3, 37, 38, 39, 40]] = 5.0  # four in each half
    rows = by_placement(measure_overlap(nn.Identity(), head_of(bias=even), SPLIT, draws=1))
    assert rows["contiguous", 2]["overlap"] == 1


def test_every_draw_has_another_placement():
    one, many = (
        by_placement(measure_overlap(nn.Identity(), head_of(), SPLIT, draws=draws))["random", 5]
        for draws in (1, 9)
    )
    assert (8 * one["overlap"]) % 1 == 0
    assert (8 * many["overlap"]) % 1 != 0  # a mean over placements that differ


def test_a_model_trained_on_shards_is_measured_on_the_same_shards():
    head = head_of(num_shards=3)
    placement = head.table.placement
    (row,) = measure_overlap(nn.Identity(), head, SPLIT, draws=2)
    shard = placement.shard(torch.arange(33, 41))
    kept = sum(min(int((shard == j).sum()), share) for j, share in enumerate((3, 3, 2)))
    assert (row["placement"], row["shards"]) == ("random", 3)
    assert row["overlap"] == kept / 8


@pytest.mark.parametrize("num_shards", [1, 3])
def test_measuring_does_not_change_the_head(num_shards):
    head = head_of(num_shards)
    head.step = 17
    before = head.table.placement
    measure_overlap(nn.Identity(), head, SPLIT, draws=1)
    assert head.step == 17
    assert head.table.placement is before


def test_a_table_that_is_not_local_is_an_error():
    head = head_of()
    head.table = nn.Identity()
    words = "virtual shards need a LocalTable, got Identity."
    with pytest.raises(UsageError, match=re.escape(words)):
        measure_overlap(nn.Identity(), head, SPLIT, draws=1)


def looks_of(cell, overlap):
    """The "looks" of a run of `cell`, with `overlap(n, m)`."""
    wanted = [("random", m) for m in SHARDS] + [("contiguous", m) for m in IN_ORDER]
    if cell.num_shards > 1:
        wanted = [("random", cell.num_shards)]
    return [
        {
            "placement": kind, "shards": m, "kept": 1.0, "kept_mass": 0.5, "gradient_cosine": 0.9,
            "overlap": overlap(cell.num_samples, m) if kind == "random" else 1 / m,
            "pool_load": 1.25, "row_load": 1.5,
        }
        for kind, m in wanted
    ]  # fmt: skip


@pytest.fixture
def fake_results(tmp_path):
    """fake_results(accuracy, overlap): the study and its ledger."""

    def finished(accuracy, overlap=lambda n, m: 1 - (m - 1) / (10 * n)):
        return finished_study(
            "shards", tmp_path, accuracy, looks=lambda cell: looks_of(cell, overlap)
        )

    return finished


def steady(cell):
    return BEST


@pytest.mark.parametrize(
    ("at_ten", "verdict"), [(0.96, "reproduced"), (0.94, "partly"), (0.89, "not reproduced")]
)
def test_close_is_decided_at_n_of_a_hundred_times_m(fake_results, at_ten, verdict):
    def overlap(n, m):
        if n == 1_000 and m <= 10:  # elsewhere n is not much larger than m
            return at_ten if m == 10 else 0.99
        return 0.3

    found, words = union_is_close_to_the_best(
        StudyResults({"shards": fake_results(steady, overlap)})
    )
    assert found == verdict
    assert f"n=1,000: 99.0 % with m=2, {100 * at_ten:.1f} % with m=10, 30.0 % with m=100" in words
    assert words.endswith(
        "counting predicts 98.8 % with m=10 and 96.1 % with m=100 for the paper's n=10,000"
    )


def test_close_must_hold_for_the_complete_interval(fake_results):
    study, ledger = fake_results(steady, lambda n, m: 0.97)
    for seed, result in enumerate(study.experiment.results(ledger, Cell("top", 1_000, 8))):
        for row in result["looks"]:
            row["overlap"] += 0.02 * (-1) ** seed  # ± 0.037 around 0.97
    assert union_is_close_to_the_best(StudyResults({"shards": (study, ledger)}))[0] == "partly"


@pytest.mark.parametrize(
    ("loss", "spread", "verdict"),
    [(0.002, 0, "reproduced"), (0.002, 0.004, "partly"), (0.006, 0, "not reproduced")],
)
def test_the_cost_is_decided_at_the_largest_n_over_m(fake_results, loss, spread, verdict):
    def accuracy(cell):
        if cell.num_shards == 1:
            return BEST
        return BEST - (loss if cell.num_samples == 1_000 and cell.num_shards == 10 else 0.1)

    study, ledger = fake_results(accuracy)
    for cell in study.experiment.cells:
        for seed, result in enumerate(study.experiment.results(ledger, cell)):
            if cell.num_shards > 1:
                result["accuracy"] += spread * (-1) ** seed
    found, words = cut_costs_no_accuracy(StudyResults({"shards": (study, ledger)}))
    assert found == verdict
    assert "n=100, m=10: -10.00" in words
    assert f"n=1,000, m=10: {-100 * loss:+.2f}" in words


def test_page_and_figure_can_be_drawn_from_real_runs(tmp_path):
    quick = STUDIES["shards"].quick()
    cells = tuple(cell for cell in quick.experiment.cells if cell.num_samples == 25)
    assert cells[-1] == Cell("top", 25, 8, None, 10, True)
    small = replace(quick.experiment, cells=cells, lrs=(1.0,), steps=2, search_steps=1)
    study, ledger = replace(quick, experiment=small), Ledger(tmp_path / "results.jsonl")
    stages = []

    def progress(stage):
        stages.append(stage)
        return lambda done, total: None

    run_experiment(small, ledger, progress, workers=1)
    assert stages == ["learning rates", "other temperatures", "final runs"]
    page = study_page(study, ledger, [])
    assert "| n=25, r=8, priority, 10 shards |" in page
    assert "| 20 | " in page
    assert "| 50 | " not in page  # more shards than classes kept
    assert draw_study(study, ledger).startswith(b"\x89PNG")


def test_an_unfinished_study_is_not_drawn(fake_results):
    study, ledger = fake_results(steady)
    moving = study.experiment.cells[-1]
    ledger.results.pop(study.experiment.results(ledger, moving)[-1]["key"])
    with pytest.raises(DataError, match="1 of 4 seeds of n=100, r=8, top, 100 shards, drawn anew"):
        draw_study(study, ledger)
