"""`recipe`: trials on validation users, and their page."""

import pytest
from oracle.command_line import invoke_experiment, last_line

from experiments.published.sets import SETS
from experiments.recipe import FULL, TAPAS, TRIALS, RecipeTrial, as_sections, execute, page
from experiments.trained_runs import Place
from tapas.comparison.ledger import Ledger
from tapas.training.config import build_config


@pytest.mark.parametrize("changes", [c for each in TRIALS.values() for c in each], ids=str)
def test_every_trial_can_be_built_and_says_what_it_decays(changes):
    """What is compared must not depend on what is chosen later."""
    config = build_config({"log": {"files": ["x"]}}, as_sections(changes))
    assert config.head.method == changes["head.method"]
    assert "optimizer.weight_decay" in changes


def test_no_two_trials_are_the_same():
    for each in TRIALS.values():
        assert len({RecipeTrial(set="beauty", seed=0, changes=c).key() for c in each}) == len(each)
    assert FULL != TAPAS


@pytest.mark.slow
def test_a_trial_is_judged_by_validation_users(tmp_path):
    lines = "".join(f"{u} {' '.join(str(1 + (u + i) % 30) for i in range(9))}\n" for u in range(90))
    (tmp_path / "ICLRec" / "data").mkdir(parents=True)
    (tmp_path / SETS["beauty"].file).write_text(lines)
    place = Place(tmp_path, tmp_path / "cache", tmp_path / "runs")
    trial = RecipeTrial(set="beauty", seed=0, changes=FULL | {"model.dim": 4})
    result = execute(trial, place)
    assert result["users"] == 90
    assert result["scores"]["recall@10"]["mean"] > 0.9
    ledger = Ledger(tmp_path / "results.jsonl")
    ledger.add(result)
    assert "model.dim = 4" in page(ledger)


def test_a_missing_file_is_told(tmp_path):
    options = ("--out", tmp_path, "--data", tmp_path, "--cache", tmp_path / "cache")
    assert "beauty needs the file" in last_line(invoke_experiment("recipe", *options))
