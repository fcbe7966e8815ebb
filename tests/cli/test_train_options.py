"""`tapas train`: --minutes, --like and --protocol, and the words of their errors."""

import json

import polars as pl
import pytest
from oracle.command_line import TINY, invoke, last_line, write_chain

from tapas.training.run_folder import open_run

CACHE = ("--cache", "cache")


@pytest.fixture
def log(at):
    return write_chain(at / "log.parquet", num_users=30, num_items=60)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--minutes", 0), "--minutes must be above 0 and below 1,000,000, got 0."),
        (("--minutes", "nan"), "--minutes must be above 0 and below 1,000,000, got nan."),
        (
            ("--minutes", 1, "--epochs", 2),
            "--minutes and --epochs both say how long to train. Use one of them.",
        ),
        (
            ("--minutes", 1, "--servers", 2),
            "--minutes measures the pace of this process, and --servers trains in others. Use "
            "--epochs or --steps.",
        ),
        (
            ("--minutes", 1, "--set", "service.servers=2"),
            "--minutes measures the pace of this process, and --servers trains in others. Use "
            "--epochs or --steps.",
        ),
        (
            ("--tune", "1m", "--set", "loop.steps=9"),
            "--tune and --steps both say how long to train. Use one of them.",
        ),
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
        (
            ("--protocol", "leave-two-out"),
            "unknown protocol 'leave-two-out'. Did you mean 'leave-one-out'? Known: leave-one-out.",
        ),
        (
            ("--split", "none"),
            "a run that holds out nothing cannot choose its best checkpoint. Train one that does, "
            "and then `tapas train --like RUN --out FOLDER` on the whole log.",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_sentence_and_no_run(log, at, flags, words):
    done = invoke("train", log, "--out", "run", *CACHE, *flags)
    assert done.returncode == 1
    assert last_line(done) == words
    assert not (at / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("faster", "method"), [(0.0, "tapas"), (1e9, "full")])
def test_a_time_that_is_short_for_a_full_softmax_is_for_sampling_if_that_is_faster(
    log, at, monkeypatch, faster, method
):
    monkeypatch.setattr("tapas.training.recipe.FEW_EPOCHS", 1e9)
    monkeypatch.setattr("tapas.training.run.FASTER", faster)
    done = invoke("train", log, "--out", "run", *CACHE, "--minutes", 0.15, "--dim", 4)
    assert done.returncode == 0, done.stderr
    assert "Chosen: head.method = full: 60 items" in done.stderr
    words = "Chosen: head.method = tapas: in this time a full softmax would see"
    assert (words in done.stderr) == (method == "tapas")
    config = open_run(at / "run").config
    assert config.head.method == method
    assert config.optimizer.weight_decay == (0.001 if method == "full" else 0.0)


def test_a_run_like_another_learns_from_all_events_and_is_not_judged(run, at):
    done = invoke("train", "--like", run, "--out", "whole")
    assert done.returncode == 0, done.stderr
    whole, example = open_run(at / "whole"), open_run(run)
    assert whole.config.split.kind == "none"
    assert whole.config.model == example.config.model
    assert whole.checkpoints.best() == whole.config.loop.steps
    refused = invoke("evaluate", "whole")
    assert last_line(refused) == (
        "this run was trained on its whole log and holds out nothing to judge it by. "
        "Evaluate the run that it is like."
    )
    twice = invoke("train", "--like", "whole", "--out", "again")
    assert last_line(twice) == (
        "whole was trained on its whole log already. Name the run that it is like."
    )
    changed = invoke("train", "--like", run, "--out", "again", "--encoder", "gru")
    assert last_line(changed) == (
        "--like trains with the settings of a run; --encoder cannot be changed."
    )
    assert not (at / "again").exists()


def test_leave_one_out_takes_equal_times_in_the_order_of_the_file(at):
    users = [user for user in range(20) for _ in range(4)]
    items = [item for user in range(20) for item in (user, 50, 40, 30)]
    pl.DataFrame({"user": users, "item": items, "time": [7] * 80}).write_parquet("log.parquet")
    flags = (*TINY, "--encoder", "mean", "--protocol", "leave-one-out")
    done = invoke("train", "log.parquet", "--out", "run", *CACHE, *flags)
    assert done.returncode == 0, done.stderr
    config = open_run(at / "run").config
    assert (config.split.kind, config.head.next_items, config.loop.exclude_seen) == (
        "last",
        1,
        True,
    )
    log = open_run(at / "run").log
    assert log.item_keys.keys(log.items[3::4]) == [30] * 20  # the last event is that of the file
    scores = json.loads(invoke("evaluate", "run", "--json", "--k", 3).stdout)["scores"]["model"]
    assert {f"{m}@{k}" for m in ("recall", "ndcg", "mrr", "hit-rate") for k in (3, 5, 10, 20)} <= {
        *scores["metrics"]
    }
