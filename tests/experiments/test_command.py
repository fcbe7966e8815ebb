"""`python -m experiments` in a separate process."""

import json
import re

import pytest
from oracle.command_line import experiment, invoke_experiment, last_line, names

from experiments.synthetic.studies import STUDIES as ALL_STUDIES

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
    assert page.startswith("Quick run on generated points: no verdicts.\n\n# ")
    assert f"`python -m experiments {study} --quick` runs it" in page
    assert not re.search("reproduced|partly|Verdict|Claim|missing", page)
    assert names(tmp_path / "results" / "quick") == [study], "no overview of claims"
    ledger = (folder / "results.jsonl").read_text()
    (folder / "figure.png").unlink()
    again = experiment(study, "--quick", "--draw", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (folder / "figure.png").exists()
    assert (folder / "results.jsonl").read_text() == ledger
    assert again.stdout == done.stdout == ""
    assert "Quick run on generated points: no verdicts.\n" in done.stderr


def test_the_list_names_every_study(tmp_path):
    said = experiment("list", cwd=tmp_path).stdout
    assert all(study in said for study in (*STUDIES, "shards", "estimators", "four-ways"))


def test_claims_without_results_are_missing_with_the_command_to_run(tmp_path):
    done = experiment("claims", "--json", cwd=tmp_path)
    assert done.returncode == 0
    rows = json.loads(done.stdout)
    assert {row["verdict"] for row in rows} == {"missing"}
    assert "`python -m experiments figure-1` runs it" in rows[1]["evidence"]
    shards = [row["evidence"] for row in rows if row["study"] == "shards"]
    assert shards == ["shards has not been run. `python -m experiments shards` runs it."] * 2


def test_claims_never_read_quick_runs(tmp_path):
    for folder in (tmp_path / "quick", tmp_path / "quick" / "." / "x" / ".."):
        assert last_line(invoke_experiment("claims", "--out", folder)) == (
            f"{folder} has quick runs, which have no verdicts. Run the studies without --quick."
        )


@pytest.mark.parametrize("study", ALL_STUDIES.values(), ids=list(ALL_STUDIES))
def test_panels_of_quick_studies_name_their_own_n(study):
    for title, cells in study.quick().panels:
        number = title.rpartition(" = ")[2].replace(",", "")
        if title.startswith("n = "):
            assert {str(c.num_samples) for c in cells if c.method != "full"} == {number}
        elif title.startswith("n·r = "):
            sizes = {c.num_samples * c.presample_factor for c in cells if c.method != "full"}
            assert {str(size) for size in sizes} == {number}


def test_drawing_without_results_is_one_clear_line(tmp_path):
    done = experiment("figure-1", "--draw", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("tapas: ")
    assert "continues where it stopped" in done.stderr
