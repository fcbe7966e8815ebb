"""Settings beside committed results are those that the code of today would write."""

import json
from pathlib import Path

import pytest

from tapas.comparison.config import CompareConfig, synthetic
from tapas.comparison.contenders import CONTENDERS
from tapas.comparison.settings import DEFINITIONS, differences, question
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig
from tapas.heads import METHODS
from tapas.heads.facts import Option
from tapas.training.config import ModelConfig, OptimizerConfig

FOLDERS = sorted((Path(__file__).parents[3] / "results" / "compare").glob("*/settings.json"))


def read(path):
    return json.loads(path.read_text())


def config_of(found):
    """The comparison that `found` are the settings of."""
    given = {
        "split": SplitConfig(**found["split"]),
        "model": ModelConfig(**found["model"]),
        "optimizer": OptimizerConfig(**found["optimizer"]),
        "contenders": tuple(found["contenders"]),
        **{name: found[name] for name in ("batch", "budget_seconds", "samples", "trials", "seeds")},
    }
    if found["log"] is None:
        return synthetic(**given)
    log = found["log"] | {"files": tuple(found["log"]["files"])}
    return CompareConfig(log=LogSource(**log), **given)


def of_today(found):
    """What would be written now for the same question; sizes are those of the log."""
    return question(config_of(found), found["num_samples"]) | {"sizes": found["sizes"]}


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: path.parent.name)
def test_committed_settings_are_those_of_today(path):
    found = read(path)
    assert len(found[DEFINITIONS]) == len(CONTENDERS)
    assert differences(found, of_today(found)) == []
    assert found[DEFINITIONS] == of_today(found)[DEFINITIONS]


def test_both_folders_are_looked_at():
    assert [path.parent.name for path in FOLDERS] == ["grocery", "synthetic"]


def test_an_option_that_is_added_later_does_not_make_results_those_of_others(monkeypatch):
    found = read(FOLDERS[0])
    options = {**METHODS["warp"].options, "margin": Option(1.0, float)}
    monkeypatch.setattr(METHODS["warp"], "options", options)
    assert differences(found, of_today(found)) == []
    monkeypatch.setattr(METHODS["warp"], "options", options | {"margin": Option(2.0, float)})
    now = of_today(found)
    now[DEFINITIONS]["warp"][0]["margin"] = 1.0  # not the default
    assert differences(found, now) == [DEFINITIONS]


def test_what_is_unknown_or_other_is_a_difference():
    found = read(FOLDERS[0])
    now = of_today(found)
    older = found | {"model": {k: v for k, v in found["model"].items() if k != "layers"}}
    assert differences(older, now) == []
    assert differences(found | {"model": found["model"] | {"layers": 2}}, now) == ["model"]
    assert differences(found | {"batch": 3}, now) == ["batch"]
    changed = json.loads(json.dumps(found))
    changed[DEFINITIONS]["warp"][0]["trys"] = 9
    assert differences(changed, now) == [DEFINITIONS]
    for wrong in (3, {"warp": 3}, {"warp": [3]}, {"warp": [{"method": "warp"}]}):
        assert differences(found | {DEFINITIONS: wrong}, now) == [DEFINITIONS]
    del found[DEFINITIONS]
    assert differences(found, now) == [DEFINITIONS]
