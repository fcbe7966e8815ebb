"""The study from search to page, very small."""

from dataclasses import replace

import pytest
import torch

from experiments.synthetic.experiment import Cell, conduct
from experiments.synthetic.figures import draw_study
from experiments.synthetic.page import study_page
from experiments.synthetic.studies import STUDIES
from tapas.comparison.ledger import Ledger


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_what_runs_leave_behind_is_what_page_and_figure_read(tmp_path):
    quick = STUDIES["shards"].quick()
    cells = tuple(cell for cell in quick.experiment.cells if cell.num_samples == 25)
    assert cells[-1] == Cell("top", 25, 8, None, 10, True)
    small = replace(quick.experiment, cells=cells, lrs=(1.0,), steps=2, search_steps=1)
    study, ledger = replace(quick, experiment=small), Ledger(tmp_path / "results.jsonl")
    stages = []

    def progress(stage):
        stages.append(stage)
        return lambda done, total: None

    conduct(small, ledger, progress, workers=1)
    assert stages == ["learning rates", "other temperatures", "drawn"]
    page = study_page(study, ledger, [])
    assert "| n=25, r=8, priority, 10 shards |" in page
    assert "| 20 | " in page
    assert "| 50 | " not in page  # more shards than classes kept
    assert draw_study(study, ledger).startswith(b"\x89PNG")


def test_each_rule_is_trained_on_one_shard_and_on_many_for_every_seed():
    experiment = STUDIES["shards"].experiment
    assert len(experiment.seeds) >= 3
    for rule in ("top", "priority"):
        for n in (100, 1_000):
            found = {
                cell.num_shards
                for cell in experiment.cells
                if (cell.method, cell.num_samples) == (rule, n)
            }
            assert {1, 10, 100} <= found
