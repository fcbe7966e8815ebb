"""Saved settings of a comparison: checked before it continues, and shown as a command."""

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tapas.cli import compare as command
from tapas.cli.main import app
from tapas.comparison.config import CompareConfig, quick, synthetic
from tapas.comparison.contenders import CONTENDERS
from tapas.comparison.settings import (
    DEFINITIONS,
    command_of,
    describe_budget,
    describe_log,
    differences,
    question,
    read_settings,
)
from tapas.data.source import LATER, LogSource
from tapas.data.splits import SplitConfig
from tapas.heads import METHODS
from tapas.heads.facts import Option
from tapas.training.config import ModelConfig, OptimizerConfig

LOG = LogSource(files=("a b.csv", "c.csv"), user="who", min_count=3, rare="drop")
CONFIGS = {
    "tapas compare --synthetic --methods all --budget 10m": synthetic(),
    "tapas compare --quick --methods full,sampled,tapas --budget 1.5s": quick(
        contenders=("full", "sampled", "tapas"), budget_seconds=1.5
    ),
    "tapas compare --quick --methods all --budget 2s": quick(
        contenders=tuple(CONTENDERS), budget_seconds=2
    ),
    "tapas compare x.csv --methods full,nce --budget 2h --seeds 1": CompareConfig(
        log=LogSource(files=("x.csv",)), contenders=("full", "nce"), budget_seconds=7_200, seeds=1
    ),
    "tapas compare 'a b.csv' c.csv --user who --min-count 3 --rare drop --methods all "
    "--budget 90s --num-samples 7 --trials 2 --set split.kind=last "
    "--set split.validation=5 --set split.test=5 --set model.encoder=mean "
    "--set model.dim=8 --set optimizer.clip=2.5 --set loop.batch=9": CompareConfig(
        log=LOG, budget_seconds=90, samples=7, trials=2, batch=9,
        split=SplitConfig(kind="last", validation=5, test=5),
        model=ModelConfig(encoder="mean", dim=8),
        optimizer=OptimizerConfig(clip=2.5),
    ),
    "tapas compare x.csv --user 1 --item 2 --time-format %d.%m.%Y --separator :: --where 3=buy "
    "--where '4>=5' --no-header --skip-bad-rows --methods full --budget 10m": CompareConfig(
        log=LogSource(
            files=("x.csv",), user="1", item="2", time_format="%d.%m.%Y", separator="::",
            where=("3=buy", "4>=5"), no_header=True, skip_bad_rows=True,
        ),
        contenders=("full",),
    ),
    "tapas compare --synthetic --methods all --budget 1m --num-samples 5 --set model.history=9": (
        synthetic(budget_seconds=60, samples=5, model=ModelConfig(history=9))
    ),
    "tapas compare --synthetic --methods all --budget 10m --set split.kind=time "
    "--set split.validation=0.1 --set split.test=0.1": synthetic(
        split=SplitConfig(kind="time")
    ),
}  # fmt: skip


def plain(config):
    return json.loads(json.dumps(dataclasses.asdict(config)))


@pytest.mark.parametrize("words", CONFIGS)
def test_settings_are_shown_as_the_command_that_gives_them(words, tmp_path, monkeypatch):
    assert command_of(plain(CONFIGS[words])) == words
    asked = []
    monkeypatch.setattr(command, "_compare", lambda config, *_: asked.append(config))
    monkeypatch.setattr(command, "_report", lambda *_: None)
    _, *arguments = shlex.split(words)
    for name in ("x.csv", "a b.csv", "c.csv"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert asked == [CONFIGS[words]]


def test_log_and_budget_as_text():
    sizes = {"events": 1_000, "users": 20, "items": 300}
    settings = {"log": {"files": ["a.csv", "b.csv"]}, "sizes": sizes}
    assert (
        describe_log(settings) == "a.csv, b.csv: 1,000 events, 20 users, 300 items (the classes)."
    )
    assert describe_log({"log": None}) == "A synthetic log, whose true distribution is known."
    one = plain(quick(seeds=1, trials=1, contenders=("full",), budget_seconds=1.2))
    assert describe_budget(one | {"num_samples": 16}) == (
        "1 method with 1.2 s of training each: half for 1 trial, half for 1 seed. Encoder gru, 8 "
        "dimensions; n = 16."
    )


RESULTS = Path(__file__).parents[3] / "results"
FOLDERS = sorted((RESULTS / "compare").glob("*/settings.json"))


def read(path):
    return read_settings(path, away="the folder")


@pytest.mark.parametrize("name", ["model", "source", "split"])
def test_settings_of_earlier_versions_are_read_with_current_names(name):
    kinds = {"model": ModelConfig, "source": LogSource, "split": SplitConfig}
    for path in sorted((RESULTS / "real-data").glob("*.json")):
        added = {"source": LATER, "model": ("dtype", "follow"), "split": ()}[name]
        fields = {f.name for f in dataclasses.fields(kinds[name])}
        assert read(path)[name].keys() == fields - set(added)


def config_of(found):
    """The configuration with the settings `found`."""
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
    """The settings that would be written now for the same comparison and sizes of log.

    Without the points: those of the committed results are several of each user.
    """
    now = question(config_of(found), found["num_samples"]) | {"sizes": found["sizes"]}
    assert now.pop("points_per_user") == "one"
    return now


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: path.parent.name)
def test_committed_settings_are_up_to_date(path):
    assert len(FOLDERS) == 2
    found = read(path)
    assert len(found[DEFINITIONS]) == len(CONTENDERS)
    assert differences(found, of_today(found)) == []
    assert found[DEFINITIONS] == of_today(found)[DEFINITIONS]


def test_an_option_that_is_added_later_is_no_difference(monkeypatch):
    found = read(FOLDERS[0])
    options = {**METHODS["warp"].options, "margin": Option(1.0, float)}
    monkeypatch.setattr(METHODS["warp"], "options", options)
    assert differences(found, of_today(found)) == []
    monkeypatch.setattr(METHODS["warp"], "options", options | {"margin": Option(2.0, float)})
    now = of_today(found)
    now[DEFINITIONS]["warp"][0]["margin"] = 1.0  # not the default
    assert differences(found, now) == [DEFINITIONS]


def test_unknown_or_changed_settings_are_a_difference():
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
