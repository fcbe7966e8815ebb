"""A finished study on shards whose numbers are made up."""

import pytest

from experiments.shards.overlap import IN_ORDER, SHARDS
from experiments.synthetic.experiment import Temperature
from experiments.synthetic.studies import STUDIES
from tapas.comparison.ledger import Ledger


def looks_of(cell, overlap):
    """The rows that a run of `cell` would have; `overlap(n, m)` of the best are kept."""
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
def made_up(tmp_path):
    """finished(accuracy, overlap): the study and its ledger, equal seeds up to 1e-5."""

    def finished(accuracy, overlap=lambda n, m: 1 - (m - 1) / (10 * n)):
        study, ledger = STUDIES["shards"], Ledger(tmp_path / "results.jsonl")
        experiment = study.experiment
        for run in experiment.learning_rates(ledger):
            put(ledger, run, 0.9 if run.lr == 1 else 0.1)
        for cell in experiment.cells:
            for seed in experiment.seeds:
                run = experiment.run(cell, 1.0, Temperature(), seed)
                put(ledger, run, accuracy(cell) + 1e-5 * seed, looks_of(cell, overlap))
        return study, ledger

    return finished


def put(ledger, run, accuracy, looks=()):
    ledger.results[run.key()] = {
        "key": run.key(), "accuracy": accuracy, "cross_entropy": 1.0, "curve": [], "looks": looks,
        "run": {"num_samples": run.num_samples, "num_shards": run.num_shards},
        "train_seconds": 1.0,
    }  # fmt: skip
