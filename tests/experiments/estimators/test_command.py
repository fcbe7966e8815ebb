"""`python -m experiments estimators`, the small version."""

import pytest
from oracle.command_line import invoke_experiment, names


@pytest.mark.slow
def test_it_measures_once_draws_and_writes(at):
    done = invoke_experiment("estimators", "--quick", "--workers", 1)
    assert done.returncode == 0, done.stderr
    folder = at / "results" / "quick" / "estimators"
    assert names(folder) == ["README.md", "bias.jsonl", "step-time.png", "step_times.jsonl"]
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert b"| TAPAS, priority | 16 |" in before["README.md"]
    assert before["README.md"].startswith(b"Quick run with few repeats: no verdicts.\n")
    assert b"python -m experiments estimators --quick" in before["README.md"]
    again = invoke_experiment("estimators", "--quick")
    assert again.returncode == 0, again.stderr
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
