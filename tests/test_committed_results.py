"""Results that are committed stay valid: their keys are those that the code of today would give.

A key that came out differently would make finished runs, hours of them, be run again.
"""

import json
from pathlib import Path

import pytest

from experiments.default_model import DefaultModelRun
from experiments.estimators.bias import BiasRun
from experiments.estimators.step_times import StepRun
from experiments.four_ways import FourWaysRun
from experiments.published.runs import PublishedRun
from experiments.real.runs import RealRun
from experiments.recipe import RecipeTrial
from experiments.synthetic.runs import Run
from experiments.system.config import Round, System
from tapas.comparison.pace import PaceRun
from tapas.comparison.runs import CompareRun

RESULTS = Path(__file__).parents[1] / "results"
KINDS = {  # of the lines of a ledger, by its folder or its name
    "real-data": RealRun,
    "system": lambda system, number: Round(System(**system), number),
    "four-ways": FourWaysRun,
    "published": PublishedRun,
    "recipe": RecipeTrial,
    "default-model": DefaultModelRun,
    "pace.jsonl": PaceRun,
    "step_times.jsonl": StepRun,
    "bias.jsonl": BiasRun,
    "runs.jsonl": CompareRun,
    "results.jsonl": Run,
}
LEDGERS = sorted(RESULTS.rglob("*.jsonl"))


@pytest.mark.parametrize("path", LEDGERS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_every_key_is_that_of_its_run(path):
    kind = KINDS.get(path.parent.name) or KINDS[path.name]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines
    assert [kind(**line["run"]).key() for line in lines] == [line["key"] for line in lines]


def test_all_ledgers_are_looked_at():
    assert sum(len(path.read_text().splitlines()) for path in LEDGERS) == 1094
