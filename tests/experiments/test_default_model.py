"""`default-model`: what a model is made of, judged at the same points."""

import pytest
from oracle.command_line import invoke_experiment, last_line, write_chain

from experiments import default_model
from experiments.default_model import (
    AGAIN,
    AS_IT_IS,
    GOING_ON,
    RENEWED,
    SOFTMAX,
    WITHOUT_COPY,
    WITHOUT_FOLLOW,
    DefaultModelRun,
    execute,
    page,
)
from experiments.trained_runs import Place
from tapas.comparison.ledger import Ledger

ABLATED = (WITHOUT_COPY, WITHOUT_FOLLOW, SOFTMAX)


@pytest.mark.slow
def test_all_models_are_judged_at_the_points_that_none_has_seen(tmp_path, monkeypatch):
    log = write_chain(tmp_path / "log.parquet", num_users=60, num_items=40)
    settings = {"log": {"files": [str(log)]}, "model": {"dim": 8}}
    settings |= {"loop": {"steps": 40, "evaluate_every": 40}}
    monkeypatch.setattr(default_model, "told_of", lambda name, place: settings)
    run = DefaultModelRun(log="groceries", seed=0, recipe=1)
    place = Place(tmp_path, tmp_path / "cache", tmp_path / "runs")
    result = execute(run, place)
    assert list(result["scores"]) == [AS_IT_IS, RENEWED, AGAIN, *GOING_ON, *ABLATED]
    assert set(result["lead"]) == {RENEWED, AGAIN, *GOING_ON, *ABLATED}
    steps = result["steps"]
    assert steps[AGAIN] > steps[AS_IT_IS] > steps["going on, a tenth"]
    ledger = Ledger(tmp_path / "results.jsonl")
    ledger.add(result)
    shown = page(ledger, 1, (0,))
    assert f"groceries: {result['points']:,} test users, one seed" in shown
    assert all(f"| {name} |" in shown for name in result["scores"])


def test_unknown_logs_and_missing_files_are_named(tmp_path):
    options = ("--out", tmp_path, "--data", tmp_path, "--cache", tmp_path / "cache")
    done = invoke_experiment("default-model", *options, "--logs", "comits")
    assert "unknown log 'comits'. Did you mean 'commits'?" in last_line(done)
    done = invoke_experiment("default-model", *options, "--logs", "commits")
    assert last_line(done) == (
        f"commits needs the file {tmp_path / 'rust_commits.parquet'}: a table of who touched which "
        "file when, with columns user, item and time."
    )
