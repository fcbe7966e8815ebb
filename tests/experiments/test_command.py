"""`python -m experiments` in a separate process."""

import json

import pytest
from oracle.command_line import experiment

pytestmark = pytest.mark.slow

STUDIES = ("figure-1", "figure-2", "pool-size", "temperature", "figure-1-priority")


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_a_quick_study_runs_once_draws_and_writes(study, tmp_path):
    done = experiment(study, "--quick", "--workers", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "quick" / study
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "README.md").read_text()
    assert "**missing**" not in page.split("## Results")[0] or study == "figure-2"
    ledger = (folder / "results.jsonl").read_text()
    (folder / "figure.png").unlink()
    again = experiment(study, "--quick", "--draw", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (folder / "figure.png").exists()
    assert (folder / "results.jsonl").read_text() == ledger
    assert again.stdout == done.stdout
    assert ("priority" in study) == (not done.stdout)  # the paper claims nothing about it


def test_the_list_names_every_study(tmp_path):
    said = experiment("list", cwd=tmp_path).stdout
    assert all(study in said for study in (*STUDIES, "shards"))


def test_claims_without_results_are_missing_with_the_command_to_run(tmp_path):
    done = experiment("claims", "--json", cwd=tmp_path)
    assert done.returncode == 0
    rows = json.loads(done.stdout)
    assert {row["verdict"] for row in rows} == {"missing"}
    assert "`python -m experiments figure-1` runs it" in rows[1]["evidence"]
    shards = [row["evidence"] for row in rows if row["study"] == "shards"]
    assert shards == ["shards has not been run. `python -m experiments shards` runs it."] * 2


def test_drawing_without_results_is_one_clear_line(tmp_path):
    done = experiment("figure-1", "--draw", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("tapas: ")
    assert "continues where it stopped" in done.stderr
