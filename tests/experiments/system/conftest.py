"""Rounds on fake servers and workers."""

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
    """Replaces the jobs by a fake engine, which is returned and answers with `answer`."""

    def install(answer=fake_segment):
        engine = Engine(answer)
        monkeypatch.setattr(measuring, "RayJob", engine)
        return engine

    return install


@pytest.fixture
def measured(tmp_path, cache, engine_of):
    """A ledger with a number of rounds of `answer`; the seed of its config is the round."""

    def make(answer=fake_segment, rounds=3, system=SMALL):
        engine_of(answer)
        ledger = Ledger(tmp_path / "results.jsonl")
        for number in range(rounds):
            ledger.add(measure(Round(system, number), cache))
        return Ledger(ledger.path)

    return make
