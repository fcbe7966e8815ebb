"""Words that results depend on are those of frozen_words.toml, neither more nor fewer."""

import ast
import tomllib
from dataclasses import fields
from pathlib import Path

import tapas
from experiments.estimators.bias import BiasRun
from experiments.estimators.step_times import StepRun
from experiments.four_ways import FourWaysRun
from experiments.real.runs import RealRun
from experiments.synthetic.runs import Run
from experiments.system.config import Round, System
from experiments.system.viewing_log import ViewingLogConfig
from tapas.comparison.pace import PaceRun
from tapas.comparison.runs import CompareRun
from tapas.comparison.synthetic_log import SyntheticLogConfig
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig

HERE = Path(__file__).parent
FROZEN = tomllib.loads((HERE / "frozen_words.toml").read_text())
FOLDERS = (Path(tapas.__file__).parent, HERE.parent / "experiments")
CLASSES = (
    *(BiasRun, CompareRun, FourWaysRun, LogSource, PaceRun, RealRun, Round, Run, SplitConfig),
    *(StepRun, SyntheticLogConfig, System, ViewingLogConfig),
)


def words_of(call):
    """Strings written out in a call of `stream`, or of a head's `_draws`, which calls it."""
    name = getattr(call.func, "attr", getattr(call.func, "id", None))
    if name not in ("stream", "_draws"):
        return set()
    constants = (node.value for node in call.args if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def test_names_of_random_streams_are_listed():
    found = set()
    for file in (file for folder in FOLDERS for file in folder.rglob("*.py")):
        calls = (node for node in ast.walk(ast.parse(file.read_text())))
        found |= set().union(*(words_of(node) for node in calls if isinstance(node, ast.Call)))
    assert sorted(found) == sorted(FROZEN["streams"])


def test_fields_behind_ledger_keys_are_listed():
    found = {kind.__name__: [field.name for field in fields(kind)] for kind in CLASSES}
    assert found == FROZEN["fields"]
