"""`tapas train --tune`: a search that can be stopped, and the words of its errors."""

import json
import subprocess
import sys

import pytest
import torch
from oracle.command_line import invoke, last_line, write_chain

from tapas import DataError
from tapas.training import tuned_run
from tapas.training.config import build_config
from tapas.training.journal import read_journal
from tapas.training.run_folder import check_free, open_run
from tapas.training.settings_search import Trial
from tapas.training.time_budget import TooShortError
from tapas.training.trainer import Trainer, TrainResult

CACHE = ("--cache", "cache")
SMALL = ("--threads", 1, "--dim", 4, "--encoder", "mean")


@pytest.fixture
def log(at):
    return write_chain(at / "log.parquet", num_users=30, num_items=60)


def test_a_time_too_short_for_two_candidates_is_told_how_long_to_give(log, at):
    done = invoke("train", log, "--out", "run", *CACHE, *SMALL, "--tune", "0.01s")
    assert last_line(done).startswith("--tune 0.01 s is too short: a step takes ")
    assert last_line(done).endswith("m, or use --minutes, which searches nothing.")
    assert not (at / "run").exists()


def test_a_folder_of_another_search_is_not_taken(run):
    done = invoke("train", "log.parquet", "--out", run, *CACHE, "--tune", "9s")
    assert last_line(done).endswith("already holds a run. Continue it with --resume, or choose "
                                    "another --out.")  # fmt: skip


def search(at, log, monkeypatch, trial, *flags):
    """`tapas train --tune` with two candidates whose trials are made by `trial(number)`."""
    made = []

    def fake(self, changes, seconds, number, candidate):
        made.append(candidate)
        return Trial(number, candidate, 0.1, 5, trial(candidate), "")

    monkeypatch.setattr(tuned_run.Laboratory, "trial", fake)
    monkeypatch.setattr(tuned_run, "NUMBERS", (2,))
    done = invoke("train", log, "--out", "run", *CACHE, *SMALL, "--tune", "60s", *flags)
    return done, made


@pytest.mark.slow
def test_a_kill_after_the_winner_is_written_changes_nothing(log, at, monkeypatch):
    """Its settings are in config.toml, but the journal does not say so yet."""
    write = tuned_run.Journal.write

    def killed(self, step, event, **numbers):
        if event == tuned_run.CHOSEN:
            raise KeyboardInterrupt
        write(self, step, event, **numbers)

    with monkeypatch.context() as patch:
        patch.setattr(tuned_run.Journal, "write", killed)
        stopped, made = search(at, log, patch, lambda candidate: [0.1, 0.2][candidate])
    assert stopped.returncode == 130
    assert made == [0, 1]
    plan = next(e for e in read_journal(at / "run" / "journal.jsonl") if e["event"] == "search")
    changes = json.loads(plan["candidates"])[1]
    before = open_run(at / "run").config
    refused = invoke("train", "--resume", "run", "--servers", 2)
    assert last_line(refused) == (
        "the search for settings in run is not finished, and it runs in one process: continue "
        "without --servers."
    )
    monkeypatch.setattr(
        Trainer, "run", lambda *args, **options: TrainResult("finished", 1, None, None)
    )
    assert invoke("train", "--resume", "run").returncode == 0
    after = open_run(at / "run").config
    assert changes
    assert (after.model, after.optimizer, after.head) == (
        before.model,
        before.optimizer,
        before.head,
    )


@pytest.mark.slow
def test_a_step_that_is_not_there_is_told_before_the_search_goes_on(log, at, monkeypatch):
    def stopped(candidate):
        raise KeyboardInterrupt

    search(at, log, monkeypatch, stopped)
    done = invoke("train", "--resume", "run", "--step", 7)
    assert done.returncode == 1
    assert "Search" not in done.stderr


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (MemoryError(), "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "not enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "not enough memory"),
        (DataError("the loss is nan"), "the loss is nan"),
        (TooShortError("too short"), "too slow for 60 s"),
        (RuntimeError("a bug"), None),
    ],
    ids=str,
)
def test_a_candidate_that_cannot_be_trained_is_a_problem_and_no_end(error, problem, monkeypatch):
    def fitted(self, config, seconds):
        raise error

    monkeypatch.setattr(tuned_run.Laboratory, "fitted", fitted)
    lab = tuned_run.Laboratory(build_config({"log": {"files": ["x"]}}), None, None)
    if problem is None:
        with pytest.raises(RuntimeError, match="a bug"):
            lab.trial({}, 60.0, 1, 0)
        return
    trial = lab.trial({}, 60.0, 1, 0)
    assert (trial.score, trial.problem) == (None, problem)


KILLED = """
import os, sys
rename = os.rename
def killed(source, target):
    if str(target).endswith("run.json"):
        os._exit(9)
    rename(source, target)
os.rename = killed
from tapas.cli.main import app
app(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_kill_while_the_run_is_created_leaves_the_folder_usable(log, at):
    """The folder exists: parts are moved into it one by one, the journal of the search too."""
    (at / "run").mkdir()
    words = ["train", log, "--out", "run", *CACHE, *SMALL, "--tune", "60s"]
    command = [sys.executable, "-c", KILLED, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 9, done.stderr
    assert (at / "run" / "journal.jsonl").exists()
    check_free(at / "run")


@pytest.mark.slow
def test_a_search_that_is_stopped_goes_on_and_its_winner_is_trained(log, at, monkeypatch):
    """The third trial is interrupted; --resume makes it again, and none of the others."""
    made = []
    trial = tuned_run.Laboratory.trial

    def interrupted(self, changes, seconds, number, candidate):
        made.append((number, candidate))
        if len(made) == 3:
            raise KeyboardInterrupt
        return trial(self, changes, seconds, number, candidate)

    monkeypatch.setattr(tuned_run.Laboratory, "trial", interrupted)
    monkeypatch.setattr(tuned_run, "NUMBERS", (4, 2))
    stopped = invoke("train", log, "--out", "run", *CACHE, *SMALL, "--tune", "90s")
    assert stopped.returncode == 130, stopped.stderr
    assert "Continue with `tapas train --resume run`." in stopped.stderr
    assert "no checkpoint yet" in last_line(invoke("evaluate", "run"))
    done = invoke("train", "--resume", "run", "--json")
    assert done.returncode == 0, done.stderr
    assert [number for number, _ in made] == [1, 1, 1, 1, 1, 2, 2]
    assert [candidate for _, candidate in made[:5]] == [0, 1, 2, 2, 3]
    events = read_journal(at / "run" / "journal.jsonl")
    chosen = next(entry for entry in events if entry["event"] == "chosen")
    plan = next(entry for entry in events if entry["event"] == "search")
    config = open_run(at / "run").config
    for name, value in json.loads(plan["candidates"])[chosen["candidate"]].items():
        section, field = name.split(".")
        table = config.head.options if section == "head" else None
        assert (table[field] if table else getattr(getattr(config, section), field)) == value
    assert (config.model.dim, config.model.encoder) == (4, "mean")
    assert json.loads(done.stdout)["step"] == config.loop.steps
    assert "Chosen:" in (at / "run" / "search.html").read_text()
    verified = invoke("verify", "run")
    assert verified.returncode == 0, verified.stderr
    assert invoke("evaluate", "run").returncode == 0
