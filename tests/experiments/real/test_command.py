"""`python -m experiments figure-3`, `figure-4`, `table-1` and `sweeps` on the command line."""

import json
import re

import pytest
from oracle.command_line import experiment, invoke_experiment, last_line

from experiments.overview import read_paces
from experiments.real.cells import SetRuns
from experiments.real.command import _check_settings
from experiments.real.sets import RUST
from tapas import DataError, UsageError

pytestmark = pytest.mark.slow


def study(*arguments, cwd):
    return experiment(*arguments, "--cache", "cache", cwd=cwd)


def test_from_runs_to_figures_paces_and_verdicts(tmp_path):
    done = study("figure-3", "--quick", "--workers", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(
        "Quick run on a made-up log: no verdicts.\n"
        "It replaces linux, wikipedia, synthetic, rust, grocery, whose files are not read.\n"
    )
    assert done.stdout == ""
    home = tmp_path / "results" / "quick"
    for picture in ("figure-3/figure.png", "figure-4/figure.png", "figure-4/tail.png"):
        assert (home / picture).read_bytes().startswith(b"\x89PNG")
    assert "the true distribution" in (home / "figure-3" / "README.md").read_text()
    assert not (home / "README.md").exists(), "no overview of claims"
    for name in ("figure-3", "figure-4"):
        page = (home / name / "README.md").read_text()
        assert page.startswith("Quick run on a made-up log: no verdicts.\n\n# Figure ")
        assert f"`python -m experiments {name} --quick` runs it" in page
        assert "made-up |" in page
        assert "n=16" in page or "n = 16" in page
        words = "linux|wikipedia|rust|grocery|public|synthetic|reproduced|Verdict|Goals|evidence.md"
        assert not re.search(words, page)
    ledger = (home / "real-data" / "synthetic.jsonl").read_text()
    runs = [json.loads(line) for line in ledger.splitlines()]
    assert len({run["key"] for run in runs}) == len(runs)

    again = study("figure-4", "--quick", "--draw", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout
    assert (home / "real-data" / "synthetic.jsonl").read_text() == ledger

    paced = study("table-1", "--quick", "--sets", "synthetic", cwd=tmp_path)
    assert paced.returncode == 0, paced.stderr
    page = (home / "table-1" / "README.md").read_text()
    assert page.startswith("Quick run on a made-up log: no verdicts.\n")
    assert "## Made-up log\n" in page
    assert "Verdict" not in page
    assert (home / "figure-3" / "time.png").exists()

    swept = study("sweeps", "--quick", "--sets", "synthetic", "--workers", "1", cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    page = (home / "sweeps" / "README.md").read_text()
    assert page.startswith("Quick run on a made-up log: no verdicts.\n")
    assert "## made-up\n\n![one setting at a time](made-up.png)" in page
    assert "| score_queries | all |" in page
    assert "| rule | top, a vote for each query |" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("figure-3", "--sets", "wikipedia", "--data", "here"),
            "wikipedia needs the file here/wikipedia_en.parquet, which is not there.",
        ),
        (("table-1", "--sets", "linus"), "unknown set 'linus'. Did you mean 'linux'?"),
        (("figure-3", "--sets", ","), "--sets names no set."),
        (("figure-4", "--draw"), "`python -m experiments figure-3`"),
        (("table-1", "--quick", "--sets", "rust"), "the search on synthetic is not finished"),
    ],
)
def test_impossible_requests_are_one_line_before_any_work(arguments, words, at):
    assert words in last_line(invoke_experiment(*arguments, "--cache", "cache"))


def test_results_of_other_data_are_an_error(tmp_path, place):
    set_runs = SetRuns(RUST, quick=True)
    path = tmp_path / "results" / "rust.json"
    _check_settings(path, set_runs, place)
    _check_settings(path, set_runs, place)  # the same again
    before = json.loads(path.read_text())
    path.write_text(json.dumps(before | {"log": {}, "points": 1}))
    words = f"the results beside {path} were made with another points, log. Choose another folder"
    with pytest.raises(UsageError, match=re.escape(words)):
        _check_settings(path, set_runs, place)
    for broken in ("", "[]"):
        path.write_text(broken)
        with pytest.raises(DataError, match=re.escape(f"{path} cannot be read as the settings")):
            _check_settings(path, set_runs, place)


@pytest.mark.parametrize("text", ["", "[]", '{"rust": [{"cell": ["top"]}]}'])
def test_an_invalid_file_of_paces_is_an_error(tmp_path, text):
    (tmp_path / "table-1").mkdir()
    (tmp_path / "table-1" / "pace.json").write_text(text)
    with pytest.raises(
        DataError, match=r"pace.json is not what `python -m experiments table-1` writes"
    ):
        read_paces(tmp_path)
