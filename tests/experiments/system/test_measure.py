"""Measuring Table 1: its cells and rounds, one job at a time, and one system for each ledger."""

import dataclasses
import json
import re

import polars as pl
import pytest
from oracle.fake_jobs import SMALL, fake_segment

from experiments.system.config import Round, System, check_same_system, finished_rounds
from experiments.system.measure import measure
from tapas import DataError, UsageError
from tapas.comparison.ledger import Ledger
from tapas.data.prepare import prepare_log
from tapas.data.splits import split_log
from tapas.errors import PeerError
from tapas.training.build import build_training

PAPER = System()


def test_cells_differ_only_in_n_r_and_rule(tmp_path):
    configs = {cell: PAPER.config(cell, tmp_path / "log", 3) for cell in PAPER.cells}
    for cell, config in configs.items():
        options = config.head.options
        assert options["num_samples"] == cell.num_samples
        assert options["presample_factor"] == cell.presample_factor
        assert options["selection"] == ("priority" if cell.method == "priority" else "top")
        assert options["score_queries"] is None  # the default of the rule: all, or 64
        assert (config.head.next_items, config.loop.seed) == (5, 3)
    assert len({repr(_headless(config)) for config in configs.values()}) == 1


def _headless(config):
    head = config.head.with_options(num_samples=1, presample_factor=1, selection="top")
    return dataclasses.replace(config, head=head)


def test_a_batch_is_about_as_large_as_in_the_paper(cache):
    """35 users with 30 events on average: 29 of each have a next one."""
    system = dataclasses.replace(PAPER, classes=8_000, users=2_000)
    log_file = system.make_log(cache)
    config = system.config(system.cells[1], log_file, 0)
    log = prepare_log(config.log, cache)
    assert log.num_items == 8_000
    parts = build_training(config, log, split_log(log, config.split))
    assert parts.model.head.num_samples == 1_000
    queries = [len(parts.windows.batch(number).query_index) for number in range(20)]
    assert 900 < sum(queries) / len(queries) < 1_100


def test_a_log_is_written_once_and_named_by_its_settings(tmp_path):
    made = SMALL.make_log(tmp_path)
    assert pl.read_parquet(made)["item"].n_unique() == 2_000
    before = made.stat().st_mtime_ns
    assert SMALL.make_log(tmp_path) == made
    assert made.stat().st_mtime_ns == before
    assert dataclasses.replace(SMALL, servers=3).make_log(tmp_path) == made
    assert dataclasses.replace(SMALL, users=301).make_log(tmp_path) != made


def test_every_round_has_all_cells_and_starts_with_another_one():
    firsts = {Round(PAPER, number).cells[0] for number in range(6)}
    assert firsts == set(PAPER.cells)
    for number in (0, 4, 11):
        assert sorted(Round(PAPER, number).cells) == sorted(PAPER.cells)


def test_rounds_of_another_system_are_an_error(measured):
    ledger = measured(rounds=1)
    check_same_system(ledger, SMALL)
    check_same_system(Ledger(ledger.path.with_name("none")), PAPER)
    words = (
        f"{ledger.path} was measured with other servers (2 there, 5 here), users (300 there, 9 "
        "here). Choose another folder with --out, or move it away."
    )
    with pytest.raises(UsageError, match=re.escape(words)):
        check_same_system(ledger, dataclasses.replace(SMALL, servers=5, users=9))


def test_a_ledger_with_two_systems_is_an_error(measured):
    measured(rounds=1)
    ledger = measured(rounds=1, system=dataclasses.replace(SMALL, users=200))
    with pytest.raises(DataError, match=r"has rounds of 2 different systems. Keep those of one."):
        finished_rounds(ledger)


@pytest.mark.parametrize("run", [{}, {"system": {"cores": 3}}, {"system": None}])
def test_a_ledger_of_something_else_is_an_error(tmp_path, run):
    ledger = Ledger(tmp_path / "results.jsonl")
    ledger.add({"key": "a", "run": run})
    with pytest.raises(DataError, match=r"is not what `python -m experiments table-1` writes"):
        finished_rounds(ledger)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"servers": 0}, "servers must be at least 1, got 0."),
        ({"steps": 0}, "steps must be at least 1, got 0."),
        ({"max_staleness": -1}, "max_staleness must be at least 0, got -1."),
        (
            {"classes": 7_999},
            "classes must be at least 8,000, the larger number of samples, got 7,999.",
        ),
    ],
)
def test_impossible_systems_are_an_error(options, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        System(**options)


def test_every_cell_gets_a_job_that_warms_up_and_is_closed(cache, engine_of):
    engine, said = engine_of(), []
    turn = Round(SMALL, 2)
    result = measure(turn, cache, said.append)
    assert len(engine.opened) == engine.closed == 6
    assert engine.ran == [4, 8] * 6
    log = SMALL.make_log(cache)
    assert engine.opened == [SMALL.config(cell, log, 2) for cell in turn.cells]
    service = engine.opened[0].service
    assert (service.servers, service.workers, service.max_staleness) == (2, 2, 3)
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
    assert result["cells"][0]["measured"]["staleness"] == {"1": 2, "3": 6}
    assert result["cells"][0]["warm_up"]["steps"] == 4
    assert str(cache) not in json.dumps(result)  # no local paths in results


def test_a_job_that_fails_is_closed(cache, engine_of):
    def fail(config, steps):
        raise PeerError("server 1 (pid 12 on host h) is gone.")

    engine = engine_of(fail)
    with pytest.raises(PeerError, match="server 1"):
        measure(Round(SMALL, 0), cache)
    assert engine.closed == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 5}, "n=16, r=1: expected 8 steps, got 5."),
        (
            {"loss": float("nan")},
            "n=16, r=1: the loss became nan within 8 steps. Lower max_staleness.",
        ),
    ],
)
def test_a_job_that_did_not_train_is_an_error(cache, engine_of, change, words):
    def answer(config, steps):
        found = fake_segment(config, steps)
        return found._replace(**change) if steps == 8 else found

    engine_of(answer)
    with pytest.raises(DataError, match=re.escape(words)):
        measure(Round(SMALL, 0), cache)
