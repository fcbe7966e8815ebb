"""Rounds on servers and workers that only pretend."""

import pytest
from oracle.fake_jobs import SMALL, Engine, fake_segment

from experiments.system import measure as measuring
from experiments.system.config import Round
from experiments.system.measure import measure
from tapas.comparison.ledger import Ledger


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def engine_of(monkeypatch):
    """Has rounds measured on an engine that answers with `answer`, which is returned."""

    def install(answer=fake_segment):
        engine = Engine(answer)
        monkeypatch.setattr(measuring, "RayJob", engine)
        return engine

    return install


@pytest.fixture
def measured(tmp_path, cache, engine_of):
    """A ledger of so many rounds of `answer`; the seed of its config is the round."""

    def make(answer=fake_segment, rounds=3, system=SMALL):
        engine_of(answer)
        ledger = Ledger(tmp_path / "results.jsonl")
        for number in range(rounds):
            ledger.add(measure(Round(system, number), cache))
        return Ledger(ledger.path)

    return make
