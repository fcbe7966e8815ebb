"""A new method needs only its class: nothing else must be changed."""

from typing import ClassVar

import pytest
import torch

from tapas import UsageError
from tapas.candidates import Candidates
from tapas.cli.cite import papers_of
from tapas.heads import METHODS, SharedSample
from tapas.heads.facts import NUM_SAMPLES, Option, Options
from tapas.training.build import build_training
from tapas.training.config import as_tables, as_toml, build_config, read_toml
from tapas.training.step import step
from tapas.training.validation import describe_head


class FirstClasses(SharedSample):
    """Uses the classes with the lowest ids as negatives."""

    method = "first-classes"
    title = "First classes"
    paper = "Nobody 2026"
    bibtex = ("bai2017tapas",)
    options: ClassVar[Options] = {
        "num_samples": NUM_SAMPLES,
        "strength": Option(0.5, float, low=0, high=2, search=(0.5, 1.0), help="of the negatives"),
    }
    targets_softmax = False

    def __init__(self, num_classes=None, dim=None, *, num_samples, strength=0.5, **options):
        super().__init__(num_classes, dim, **options)
        self.num_samples, self.strength = num_samples, strength

    def candidates(self, batch):
        log_q = torch.full((self.num_samples,), -float(torch.tensor(self.strength).log()))
        return Candidates(torch.arange(self.num_samples), log_q)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(METHODS, FirstClasses.method, FirstClasses)


def config(tmp_path, **head):
    path = tmp_path / "config.toml"
    lines = [f"{name} = {value!r}" for name, value in head.items()]
    path.write_text("\n".join(["[head]", "method = 'first-classes'", *lines, ""]))
    more = {"log": {"files": ["x.csv"]}, "model": {"encoder": "mean", "dim": 4, "history": 5}}
    return build_config(read_toml(path), more, {"loop": {"batch": 6}})


def test_it_is_configured_built_and_trained(data, tmp_path):
    setup = build_training(config(tmp_path, strength=1.5), *data)
    head = setup.model.head
    assert type(head) is FirstClasses
    assert (head.num_samples, head.strength) == (5, 1.5)  # an eighth of 40 classes
    assert setup.config.head.options == {"num_samples": 5, "strength": 1.5}
    before = head.table.weight.clone()
    step(setup.model, setup.optimizer, setup.windows.batch(0), seed=0, number=0, clip=1.0)
    assert not torch.equal(head.table.weight, before)


def test_it_is_saved_cited_and_described(tmp_path):
    found = config(tmp_path, num_samples=7)
    assert build_config(as_tables(found)) == found
    assert "strength = 0.5" in as_toml(found)
    assert papers_of(found.head) == ("bai2017tapas",)
    assert describe_head(found.head, 100) == "First classes, n = 7"


def test_its_options_are_checked(tmp_path):
    with pytest.raises(UsageError, match=r"^head\.strength must be between 0 and 2, got 3\.0\.$"):
        config(tmp_path, strength=3)
    with pytest.raises(UsageError, match=r"^head\.strength is not an option of the method 'tapas'"):
        build_config({"log": {"files": ["x.csv"]}, "head": {"strength": 1}})
