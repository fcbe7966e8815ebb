"""`tapas train --tune`: a search that can be stopped, and the words of its errors."""

import json

import pytest
from oracle.command_line import invoke, last_line, write_chain

from tapas.training import tuned_run
from tapas.training.journal import read_journal
from tapas.training.run_folder import open_run

CACHE = ("--cache", "cache")
SMALL = ("--threads", 1, "--dim", 4, "--encoder", "mean")


@pytest.fixture
def log(at):
    return write_chain(at / "log.parquet", num_users=30, num_items=60)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ("--tune", "soon"),
            "cannot read 'soon' as a time above 0. Write 90s, 10m, 1h, or a number of seconds.",
        ),
        (
            ("--tune", "0m"),
            "cannot read '0m' as a time above 0. Write 90s, 10m, 1h, or a number of seconds.",
        ),
        (
            ("--tune", "1m", "--minutes", 1),
            "--minutes and --tune both say how long to train. Use one of them.",
        ),
        (
            ("--tune", "1m", "--steps", 9),
            "--tune and --steps both say how long to train. Use one of them.",
        ),
        (
            ("--tune", "1m", "--servers", 2),
            "--tune measures the pace of this process, and --servers trains in others. Use "
            "--epochs or --steps.",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_sentence_and_no_run(log, at, flags, words):
    done = invoke("train", log, "--out", "run", *CACHE, *flags)
    assert done.returncode == 1
    assert last_line(done) == words
    assert not (at / "run").exists()


def test_a_time_too_short_for_two_candidates_is_told_how_long_to_give(log, at):
    done = invoke("train", log, "--out", "run", *CACHE, *SMALL, "--tune", "0.01s")
    assert last_line(done).startswith("--tune 0.01 s is too short: a step takes ")
    assert last_line(done).endswith("m, or use --minutes, which searches nothing.")
    assert not (at / "run").exists()


def test_a_folder_of_another_search_is_not_taken(run):
    done = invoke("train", "log.parquet", "--out", run, *CACHE, "--tune", "9s")
    assert last_line(done).endswith("already holds a run. Continue it with --resume, or choose "
                                    "another --out.")  # fmt: skip


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
