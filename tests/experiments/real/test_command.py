"""`python -m experiments figure-3`, `figure-4`, `table-1` and `sweeps` as a stranger uses them."""

import json
import re

import pytest
from oracle.journeys import experiment

from experiments.overview import read_paces
from experiments.real.cells import Plan
from experiments.real.command import _check_settings
from experiments.real.sets import RUST, Place
from tapas import DataError, UsageError

pytestmark = pytest.mark.slow


def study(*arguments, cwd):
    return experiment(*arguments, "--cache", "cache", cwd=cwd)


def one_line(done):
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith("tapas: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_from_runs_to_figures_paces_and_verdicts(tmp_path):
    done = study("figure-3", "--quick", "--sets", "synthetic", "--workers", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    home = tmp_path / "results" / "quick"
    for picture in ("figure-3/figure.png", "figure-4/figure.png", "figure-4/tail.png"):
        assert (home / picture).read_bytes().startswith(b"\x89PNG")
    assert "the true distribution" in (home / "figure-3" / "README.md").read_text()
    ledger = (home / "real-data" / "synthetic.jsonl").read_text()
    runs = [json.loads(line) for line in ledger.splitlines()]
    assert len({run["key"] for run in runs}) == len(runs)

    again = study("figure-4", "--quick", "--draw", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout
    assert (home / "real-data" / "synthetic.jsonl").read_text() == ledger

    paced = study("table-1", "--quick", "--sets", "synthetic", cwd=tmp_path)
    assert paced.returncode == 0, paced.stderr
    assert "Increasing n slows training significantly" in paced.stdout
    assert "missing" not in (home / "table-1" / "README.md").read_text()
    assert (home / "figure-3" / "time.png").exists()

    swept = study("sweeps", "--quick", "--sets", "synthetic", "--workers", "1", cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    page = (home / "sweeps" / "README.md").read_text()
    assert "| score_queries | all |" in page
    assert "| rule | top, a vote for each query |" in page


def test_a_file_that_is_missing_is_told_before_any_work(tmp_path):
    said = one_line(study("figure-3", "--sets", "wikipedia", "--data", "here", cwd=tmp_path))
    assert "wikipedia needs the file here/wikipedia_en.parquet, which is not there." in said
    assert "--data" in said
    assert "--sets" in said


def test_a_set_that_does_not_exist_gets_a_suggestion(tmp_path):
    said = one_line(study("table-1", "--sets", "linus", cwd=tmp_path))
    assert "unknown set 'linus'. Did you mean 'linux'?" in said


def test_no_set_at_all(tmp_path):
    said = one_line(study("figure-3", "--sets", ",", cwd=tmp_path))
    assert "--sets names no set." in said


@pytest.mark.parametrize("name", ["figure-3", "figure-4"])
def test_drawing_what_was_never_run(name, tmp_path):
    assert "`python -m experiments figure-3`" in one_line(study(name, "--draw", cwd=tmp_path))


def quick_plan(tmp_path):
    return Plan(RUST, quick=True), Place(tmp_path / "data", tmp_path / "cache")


def test_results_of_other_data_are_refused(tmp_path):
    plan, place = quick_plan(tmp_path)
    path = tmp_path / "results" / "rust.json"
    _check_settings(path, plan, place)
    _check_settings(path, plan, place)  # the same again
    before = json.loads(path.read_text())
    path.write_text(json.dumps(before | {"log": {}, "points": 1}))
    words = f"the results beside {path} were made with another points, log. Choose another folder"
    with pytest.raises(UsageError, match=re.escape(words)):
        _check_settings(path, plan, place)
    for broken in ("", "[]"):
        path.write_text(broken)
        with pytest.raises(DataError, match=re.escape(f"{path} cannot be read as the settings")):
            _check_settings(path, plan, place)


@pytest.mark.parametrize("text", ["", "[]", '{"rust": [{"cell": ["top"]}]}'])
def test_paces_that_are_none_are_told(tmp_path, text):
    (tmp_path / "table-1").mkdir()
    (tmp_path / "table-1" / "pace.json").write_text(text)
    with pytest.raises(
        DataError, match=r"pace.json is not what `python -m experiments table-1` writes"
    ):
        read_paces(tmp_path)


def test_measuring_before_the_search(tmp_path):
    said = one_line(study("table-1", "--quick", "--sets", "rust", cwd=tmp_path))
    assert "the search on rust is not finished" in said
