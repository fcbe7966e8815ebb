"""Results survive what happens to files."""

import json
import os
import re
import signal

import pytest

from experiments.synthetic.runs import Run
from tapas.comparison.ledger import Ledger
from tapas.errors import DataError

RUN = Run(task="linear-quick", method="top", num_samples=4, lr=0.1, steps=3, seed=0, batch=8,
          evaluate_every=3)  # fmt: skip


def result(run, accuracy=0.5):
    return {"key": run.key(), "run": {}, "accuracy": accuracy, "cross_entropy": 1.0, "curve": []}


def test_what_was_added_is_there_after_reading_again(tmp_path):
    ledger = Ledger(tmp_path / "deep" / "results.jsonl")
    assert RUN not in ledger
    ledger.add(result(RUN))
    again = Ledger(tmp_path / "deep" / "results.jsonl")
    assert RUN in again
    assert again[RUN]["accuracy"] == 0.5


def test_only_what_is_missing_is_missing_and_once(tmp_path):
    ledger = Ledger(tmp_path / "results.jsonl")
    ledger.add(result(RUN))
    other = RUN.with_seed(1)
    assert ledger.missing([RUN, other, other]) == [other]


def test_a_line_cut_short_is_done_again_and_the_next_one_is_whole(tmp_path):
    path = tmp_path / "results.jsonl"
    ledger = Ledger(path)
    ledger.add(result(RUN))
    other = RUN.with_seed(1)
    path.write_text(path.read_text() + json.dumps(result(other))[:20])
    torn = Ledger(path)
    assert RUN in torn
    assert other not in torn
    torn.add(result(other))
    assert other in Ledger(path)


def test_a_line_is_whole_and_its_file_closed_before_a_signal_is_heard(tmp_path, monkeypatch):
    path, fsync = tmp_path / "results.jsonl", os.fsync

    def told_to_stop(descriptor):
        signal.raise_signal(signal.SIGTERM)
        fsync(descriptor)

    def stop(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    monkeypatch.setattr(os, "fsync", told_to_stop)
    ledger = Ledger(path)
    try:
        with pytest.raises(KeyboardInterrupt):
            ledger.add(result(RUN))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert RUN in ledger
    assert RUN in Ledger(path)


def test_a_file_that_is_no_ledger_is_named_with_its_line(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"key": "a", "run": {}, "accuracy": 1}\n{"other": 1}\n')
    words = (
        "line 2: not a result of an experiment (no key and run). Move the file away, "
        "or remove that line."
    )
    with pytest.raises(DataError, match=re.escape(words)):
        Ledger(path)


def test_every_setting_is_part_of_the_key():
    keys = {RUN.key()}
    for change in (
        {"method": "priority"}, {"num_samples": 5}, {"presample_factor": 2}, {"lr": 0.2},
        {"temperature": 0.5}, {"anneal_to": 0.1}, {"steps": 4}, {"seed": 1}, {"batch": 9},
        {"l2": 0.1}, {"hidden": 3}, {"evaluate_every": 1}, {"judge": "validation"},
        {"task": "linear"}, {"num_shards": 2}, {"moving": True}, {"looks": 1},
    ):  # fmt: skip
        fields = {name: getattr(RUN, name) for name in RUN.__slots__}
        keys.add(Run(**(fields | change)).key())
    assert len(keys) == 18


def test_a_run_from_before_there_were_shards_keeps_its_key():
    before = Run(task="linear", method="top", num_samples=16, lr=0.05, steps=3_000, seed=1_000,
                 batch=16, l2=0.001, evaluate_every=3_000, judge="validation")  # fmt: skip
    assert before.key() == "2208898b77746862"
