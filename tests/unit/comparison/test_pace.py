"""Step times of the contenders: measured in turns, once, and saved."""

import math

import pytest

from tapas.comparison import pace
from tapas.comparison.config import quick
from tapas.comparison.ledger import Ledger
from tapas.comparison.pace import mean_step, measure_paces, pace_runs, paces
from tapas.errors import UsageError

CONFIG = quick(pace_rounds=3, contenders=("full", "sampled", "tapas"))


def follow(done, total):
    pass


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "pace.jsonl")


def test_a_step_time_is_the_mean_without_the_warm_up():
    taken = []

    def take(number):
        taken.append(number)
        return 9.0 if number < 3 else float(number)

    assert mean_step(take, seconds=100.0) == 8.5  # 3 + 4 + ... + 14 is the first above 100
    assert taken == list(range(15))
    # at least three count, unless they are very slow
    assert mean_step(lambda number: [0, 0, 0, 5.0, 3.0, 10.0][number], seconds=4.0) == 6
    asked = []
    assert mean_step(lambda number: asked.append(number) or 60.0, seconds=1.0) == 60
    assert asked == [0, 1]


def test_contenders_take_turns(ledger, cache, monkeypatch):
    turns = []

    def take_turn(run, turn, found, config, opened):
        turns.append((turn, run.contender))
        found["step_seconds"].append(turn + 1.0)

    monkeypatch.setattr(pace, "_take_turn", take_turn)
    runs = pace_runs(CONFIG, 16)
    measure_paces(ledger, runs, CONFIG, cache, follow)
    assert turns == [(turn, name) for turn in range(3) for name in CONFIG.contenders]
    assert paces(ledger, runs) == dict.fromkeys(CONFIG.contenders, 2.0)
    turns.clear()
    measure_paces(Ledger(ledger.path), runs, CONFIG, cache, follow)
    assert turns == []


@pytest.mark.slow
def test_a_method_that_cannot_be_built_is_recorded_and_the_others_are_measured(
    ledger, cache, monkeypatch
):
    build, refused = pace.build_run, []

    def refuse(run, config, opened):
        if run.contender == "full":
            refused.append(run)
            raise UsageError("this needs more memory than there is.")
        return build(run, config, opened)

    monkeypatch.setattr(pace, "build_run", refuse)
    runs = pace_runs(CONFIG, 16)
    measure_paces(ledger, runs, CONFIG, cache, follow)
    assert ledger[runs[0]]["skipped"] == "this needs more memory than there is."
    assert len(refused) == 1  # once is enough
    found = paces(ledger, runs)
    assert set(found) == {"sampled", "tapas"}
    assert all(math.isfinite(seconds) for seconds in found.values())


def test_an_interrupted_measurement_writes_nothing(ledger, cache, monkeypatch):
    def stop(run, turn, found, config, opened):
        found["step_seconds"].append(1.0)
        if turn == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(pace, "_take_turn", stop)
    with pytest.raises(KeyboardInterrupt):
        measure_paces(ledger, pace_runs(CONFIG, 16), CONFIG, cache, follow)
    assert not ledger.path.exists()
