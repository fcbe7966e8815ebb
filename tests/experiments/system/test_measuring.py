"""One round: jobs one at a time, warmed up, closed whatever happens, and written down plainly."""

import json
import re

import pytest
from oracle.pretended_jobs import SMALL, Engine, pretended

from experiments.system.config import Round
from experiments.system.measure import measure
from tapas import DataError
from tapas.errors import PeerError


def test_every_cell_gets_a_job_that_warms_up_and_is_closed(cache):
    engine, said = Engine(), []
    turn = Round(SMALL, 2)
    result = measure(turn, cache, engine, said.append)
    assert len(engine.opened) == engine.closed == 6
    assert engine.ran == [4, 8] * 6
    log = SMALL.make_log(cache)
    for cell, (config, where, servers, workers, staleness) in zip(
        turn.cells, engine.opened, strict=True
    ):
        assert config == SMALL.config(cell, log, 2)
        assert (where, servers, workers, staleness) == (cache, 2, 2, 3)
    assert said[0] == "round 3: n=16, r=8, priority"
    assert json.loads(json.dumps(result["run"])) == {
        "system": {
            "servers": 2, "workers": 2, "max_staleness": 3, "classes": 2_000, "users": 300,
            "samples": 16, "batch": 8, "dim": 8, "history": 50, "warm_up": 4, "steps": 8,
        },
        "number": 2,
    }  # fmt: skip
    assert result["key"] == turn.key()
    assert result["cores"] >= 1


def test_a_record_is_what_the_job_said(cache):
    result = json.loads(json.dumps(measure(Round(SMALL, 0), cache, Engine())))
    first = result["cells"][0]
    assert first["cell"] == ["sampled", 16, 1]
    assert first["measured"]["steps"] == 8
    assert first["measured"]["rows_pushed"] == 8 * 26
    assert first["measured"]["staleness"] == {"1": 2, "3": 6}
    assert first["warm_up"]["steps"] == 4
    assert str(cache) not in json.dumps(result)  # where it ran is nobody's business


def test_a_job_that_fails_is_closed(cache):
    def fail(config, steps):
        raise PeerError("server 1 (pid 12 on host h) is gone.")

    engine = Engine(fail)
    with pytest.raises(PeerError, match="server 1"):
        measure(Round(SMALL, 0), cache, engine)
    assert engine.closed == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 5}, "n=16, r=1: 8 steps were asked for, 5 were done."),
        (
            {"loss": float("nan")},
            "n=16, r=1: the loss became nan within 8 steps. Lower max_staleness.",
        ),
    ],
)
def test_a_job_that_did_not_train_is_no_measurement(cache, change, words):
    def answer(config, steps):
        found = pretended(config, steps)
        return found._replace(**change) if steps == 8 else found

    with pytest.raises(DataError, match=re.escape(words)):
        measure(Round(SMALL, 0), cache, Engine(answer))
