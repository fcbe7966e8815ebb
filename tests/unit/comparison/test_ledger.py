"""A ledger survives interruptions and damaged lines."""

import json
import os
import re
import signal

import pytest

from tapas.comparison import ledger as ledgers
from tapas.comparison.ledger import Ledger
from tapas.comparison.pace import PaceRun
from tapas.errors import DataError

RUN, OTHER = PaceRun("full", 3), PaceRun("tapas", 3)


def result(run):
    return {"key": run.key(), "run": {}, "accuracy": 0.5}


def test_added_results_are_read_again_and_missing_runs_are_listed_once(tmp_path):
    ledger = Ledger(tmp_path / "deep" / "results.jsonl")
    assert RUN not in ledger
    ledger.add(result(RUN))
    again = Ledger(tmp_path / "deep" / "results.jsonl")
    assert again[RUN]["accuracy"] == 0.5
    assert again.missing([RUN, OTHER, OTHER]) == [OTHER]


def test_a_truncated_line_is_run_again_and_the_next_line_is_complete(tmp_path):
    path = tmp_path / "results.jsonl"
    ledger = Ledger(path)
    ledger.add(result(RUN))
    path.write_text(path.read_text() + json.dumps(result(OTHER))[:20])
    torn = Ledger(path)
    assert RUN in torn
    assert OTHER not in torn
    torn.add(result(OTHER))
    assert OTHER in Ledger(path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        result(RUN),
        result(OTHER),
    ]


def test_a_last_line_that_lacks_only_its_end_counts(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(result(RUN)))
    ledger = Ledger(path)
    ledger.add(result(OTHER))
    assert list(Ledger(path).results) == list(ledger.results) == [RUN.key(), OTHER.key()]


CURE = "Remove that line; the same command then does its run again."


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"key": "b", "ru', f"line 2 is damaged: Invalid control character at. {CURE}"),
        ("\xff", f"line 2 is damaged: 'utf-8' codec .*{CURE}"),
        ('{"key": "b", "key": "c"}', f"line 2 is damaged: an object has 'key' twice. {CURE}"),
        (" " * 2_000, f"line 2 is damaged: more than 0 MB. {CURE}"),
        ('{"key": "a", "run": {}, "accuracy": 2}',
         r"line 2: another result of the run in line 1\. Remove one of the two lines\."),
    ],
)  # fmt: skip
def test_other_damage_is_named_with_its_line(tmp_path, monkeypatch, line, words):
    monkeypatch.setattr(ledgers, "MAX_TEXT_BYTES", 1_000)
    path = tmp_path / "results.jsonl"
    good = '{"key": "a", "run": {}, "accuracy": 1}\n'
    path.write_bytes(f"{good}{line}\n{good}".encode("latin-1"))
    with pytest.raises(DataError, match=rf"^{path}, {words}$"):
        Ledger(path)


def test_the_same_line_twice_counts_once(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(2 * (json.dumps(result(RUN)) + "\n"))
    assert list(Ledger(path).results) == [RUN.key()]


def test_a_line_is_complete_and_its_file_closed_before_a_signal_is_handled(tmp_path, monkeypatch):
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


def test_a_file_that_is_not_a_ledger_is_an_error_with_the_line(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"key": "a", "run": {}, "accuracy": 1}\n{"other": 1}\n')
    words = (
        "line 2: not a result of an experiment (no key and run). Move the file away, "
        "or remove that line."
    )
    with pytest.raises(DataError, match=re.escape(words)):
        Ledger(path)
