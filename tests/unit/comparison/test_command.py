"""The command on the page asks for the same comparison again."""

import dataclasses
import json
import shlex

import pytest
from typer.testing import CliRunner

from tapas.cli import compare as command
from tapas.cli.main import app
from tapas.comparison.config import CompareConfig, quick, synthetic
from tapas.comparison.contenders import CONTENDERS
from tapas.comparison.settings import budget_words, command_of, duration, log_words
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig
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
        split=SplitConfig(kind="last"), model=ModelConfig(encoder="mean", dim=8),
        optimizer=OptimizerConfig(clip=2.5),
    ),
    "tapas compare --synthetic --methods all --budget 1m --num-samples 5 --set model.history=9": (
        synthetic(budget_seconds=60, samples=5, model=ModelConfig(history=9))
    ),
    "tapas compare --synthetic --methods all --budget 10m --set split.kind=time "
    "--set split.validation=0.1 --set split.test=0.1": synthetic(split=SplitConfig()),
}  # fmt: skip


def plain(config):
    return json.loads(json.dumps(dataclasses.asdict(config)))


@pytest.mark.parametrize("words", CONFIGS)
def test_the_command_of_these_settings(words):
    assert command_of(plain(CONFIGS[words])) == words


@pytest.mark.parametrize("words", CONFIGS)
def test_the_command_asks_for_these_settings(words, tmp_path, monkeypatch):
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


def test_the_log_in_words():
    sizes = {"events": 1_000, "users": 20, "items": 300}
    settings = {"log": {"files": ["a.csv", "b.csv"]}, "sizes": sizes}
    assert log_words(settings) == "a.csv, b.csv: 1,000 events, 20 users, 300 items (the classes)."
    assert log_words({"log": None}) == "A made-up log, whose true distribution is known."


def test_the_budget_in_words():
    settings = plain(quick(seeds=1, trials=1, contenders=("full",), budget_seconds=1.2)) | {
        "num_samples": 16
    }
    assert budget_words(settings) == (
        "1 method with 1.2 s of training each: half for 1 trial, half for 1 seed. Encoder gru, 8 "
        "dimensions; n = 16."
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "0.5 s"), (119, "119 s"), (150, "2.5 min"), (3_600, "60 min"), (7_200, "2.0 h")],
)
def test_times_in_words(seconds, words):
    assert duration(seconds) == words


def test_all_contenders_are_all():
    assert "--methods all" in command_of(plain(synthetic(contenders=tuple(CONTENDERS))))
