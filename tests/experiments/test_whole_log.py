"""`whole-log`: models that learn from held-out events are judged at the same points."""

import pytest
from oracle.command_line import invoke_experiment, last_line, write_chain

from experiments import whole_log
from experiments.whole_log import (
    AGAIN,
    AS_IT_IS,
    GOING_ON,
    RENEWED,
    Place,
    WholeLogRun,
    execute,
    page,
)
from tapas.comparison.ledger import Ledger


@pytest.mark.slow
def test_all_models_are_judged_at_the_points_that_none_has_seen(tmp_path, monkeypatch):
    log = write_chain(tmp_path / "log.parquet", num_users=60, num_items=40)
    settings = {"log": {"files": [str(log)]}, "model": {"dim": 8}}
    settings |= {"loop": {"steps": 40, "evaluate_every": 40}}
    monkeypatch.setattr(whole_log, "source", lambda name, place: settings)
    run = WholeLogRun(log="groceries", seed=0, recipe=1)
    place = Place(tmp_path, tmp_path / "cache", tmp_path / "runs")
    result = execute(run, place)
    assert list(result["scores"]) == [AS_IT_IS, RENEWED, AGAIN, *GOING_ON]
    assert set(result["lead"]) == {RENEWED, AGAIN, *GOING_ON}
    steps = result["steps"]
    assert steps[AGAIN] > steps[AS_IT_IS] > steps["going on, a tenth"]
    assert not list((tmp_path / "runs").iterdir())
    ledger = Ledger(tmp_path / "results.jsonl")
    ledger.add(result)
    shown = page(ledger, 1, (0,))
    assert f"groceries: {result['points']:,} test users, one seed" in shown
    assert all(f"| {name} |" in shown for name in result["scores"])


def test_unknown_logs_and_missing_files_are_named(tmp_path):
    options = ("--out", tmp_path, "--data", tmp_path, "--cache", tmp_path / "cache")
    done = invoke_experiment("whole-log", *options, "--logs", "comits")
    assert "unknown log 'comits'. Did you mean 'commits'?" in last_line(done)
    done = invoke_experiment("whole-log", *options, "--logs", "commits")
    assert last_line(done) == (
        f"commits needs the file {tmp_path / 'rust_commits.parquet'}; see docs/evidence.md."
    )
