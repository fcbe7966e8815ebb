"""Every setting with every absurd value is refused in one sentence, or a model is built with it."""

import math
from dataclasses import fields

import pytest

from tapas import TapasError, UsageError
from tapas.encoders import ENCODERS, build_encoder, num_parameters
from tapas.heads import METHODS
from tapas.training import memory_plan
from tapas.training.build import build_training
from tapas.training.config import _TYPES, HeadConfig, TrainConfig, build_config

VALUES = [0, -1, 2**31, 2**63, 10**12, math.nan, math.inf, -math.inf, 1e-300, "", True, [], ["1"]]
BASE = {
    "log": {"files": ["a.csv"]},
    "model": {"dim": 4, "history": 5},
    "loop": {"steps": 3, "batch": 4},
}
SETTINGS = [
    (section, field.name, "tapas")
    for section, kind in _TYPES.items()
    for field in fields(kind)
    if (section, field.name) != ("head", "options")
]
SETTINGS += [("head", name, method) for method, kind in METHODS.items() for name in kind.options]


def is_sentence(error: TapasError) -> bool:
    words = str(error)
    return words.endswith(".") and "\n" not in words and len(words) < 700


@pytest.mark.parametrize("section", _TYPES)
def test_an_absurd_value_is_refused_in_a_sentence_or_builds(section, data, monkeypatch):
    """With the memory of a small machine, so that nothing large is allocated."""
    monkeypatch.setattr(memory_plan, "available_memory", lambda *_: 600_000_000)
    wrong, built = [], 0
    for _, name, method in [setting for setting in SETTINGS if setting[0] == section]:
        for value in VALUES:
            tables = {**BASE, section: {**BASE.get(section, {}), name: value}}
            if section == "head" and name != "method":
                tables["head"]["method"] = method
            try:
                config = build_config(tables)
                if not config.service.servers:
                    build_training(config, *data)
                built += 1
            except TapasError as error:
                if not is_sentence(error):
                    wrong.append((section, name, value, str(error)))
            except Exception as error:
                wrong.append((section, name, value, repr(error)))
    assert wrong == []
    assert section == "service" or built


@pytest.mark.parametrize(
    ("section", "name", "value", "words"),
    [
        ("model", "dim", 10**12, "model.dim must be at most 2,147,483,647, got 1,000,000,000,000."),
        ("model", "layers", 100_000, "model.layers must be at most 1,000, got 100,000."),
        ("loop", "seed", 2**63, f"loop.seed must be between -2^63 and 2^63 - 1, got {2**63}."),
        ("split", "seed", 2**64, f"split.seed must be between -2^63 and 2^63 - 1, got {2**64}."),
        ("service", "servers", 10**9, "service.servers must be at most 100,000, got 1,000,000,000"),
    ],
)
def test_the_bounds_are_named(section, name, value, words):
    with pytest.raises(UsageError) as caught:
        build_config({**BASE, section: {name: value}})
    assert words in str(caught.value)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize(("dim", "history", "layers"), [(6, 7, 1), (10, 3, 3)])
def test_the_parameters_of_an_encoder_are_counted_without_building_it(
    encoder, dim, history, layers
):
    built = build_encoder(encoder, dim, history=history, layers=layers)
    expected = sum(parameter.numel() for parameter in built.parameters())
    assert num_parameters(encoder, dim, layers=layers) == expected


@pytest.mark.parametrize(
    "model", [{"dim": 2**31 - 1}, {"dim": 100_000}, {"dim": 10_000, "layers": 1_000}]
)
def test_the_plan_refuses_before_an_encoder_is_allocated(model, data, monkeypatch):
    monkeypatch.setattr("tapas.training.build.build_encoder", None)
    with pytest.raises(
        UsageError, match=r"^\d+ classes of \d+ dimensions on 1 rank need .* free\."
    ):
        build_training(build_config({**BASE, "model": model}), *data)


def test_all_settings_are_in_the_table():
    assert {section for section, _, _ in SETTINGS} == {field.name for field in fields(TrainConfig)}
    assert len(SETTINGS) > 50 + len(fields(HeadConfig))


def test_nothing_is_trained_on_meta_tensors():
    with pytest.raises(UsageError, match=r"loop\.device is 'meta', whose tensors have no data\."):
        build_config(BASE, {"loop": {"device": "meta"}})
