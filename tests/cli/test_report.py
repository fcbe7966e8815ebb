"""`report.html`, as `tapas train` and `tapas evaluate` write it."""

import os
import re

import pytest
from oracle.command_line import PLAIN, TINY, invoke, write_chain

from tapas.training import report


def page_of(run):
    return (run / "report.html").read_text()


@pytest.fixture
def log(at):
    return write_chain(at / "log.parquet", num_users=20, num_items=30)


def train(log, *options):
    return invoke("train", log, "--cache", "cache", *TINY, *PLAIN, *options)


def test_training_judges_by_validation_users_and_evaluate_by_test_users(log, at):
    done = train(log, "--out", "run")
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert said[said.index("Report: run/report.html") + 1].startswith("Next: `tapas evaluate run`")
    page = page_of(at / "run")
    assert re.search(r"MAP@20 of \d+ validation users", page)
    assert "tapas evaluate run" in page
    assert "loop.patience" in page
    done = invoke("evaluate", "run", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "Report: run/report.html\n"
    page = page_of(at / "run")
    assert re.search(r"MAP@20 of \d+ test users", page)
    assert "tapas evaluate run" not in page
    verified = invoke("verify", "run")
    assert verified.returncode == 0, verified.stderr


def test_quiet_says_nothing_and_writes_it(log, at):
    done = train(log, "--out", "run", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert "How good it is" in page_of(at / "run")


def test_an_interrupted_run_gets_its_report_when_it_is_resumed(log, at, monkeypatch):
    from tapas.training.trainer import Trainer

    run = Trainer.run
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", lambda *args, **options: run(
            *args, **{**options, "should_stop": lambda: True}))  # fmt: skip
        stopped = train(log, "--out", "run")
    assert stopped.returncode == 130
    assert "Report: " not in stopped.stderr
    assert not (at / "run" / "report.html").exists()
    done = invoke("train", "--resume", "run")
    assert "Report: run/report.html" in done.stderr
    assert "4 of at most 4" in page_of(at / "run")


def test_a_run_like_another_has_a_report_without_scores(run, at):
    done = invoke("train", "--like", run, "--out", "whole")
    assert "Report: whole/report.html" in done.stderr
    assert "It has learned from all events" in page_of(at / "whole")
    assert "MAP@20 of" not in page_of(at / "whole")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_only_be_read_is_evaluated_with_a_warning(run):
    run.chmod(0o500)
    try:
        done = invoke("evaluate", run)
    finally:
        run.chmod(0o700)
    assert done.returncode == 0
    assert "Warning: the report was not written: cannot write" in done.stderr


@pytest.mark.parametrize(
    "command", [("train", "--resume", "run"), ("evaluate", "run")], ids=" ".join
)
def test_no_command_fails_for_its_report(log, at, monkeypatch, command):
    """There is a folder in its place, and then an error in the page."""
    assert train(log, "--out", "run").returncode == 0
    file = at / "run" / "report.html"
    file.unlink()
    file.mkdir()
    no_place = invoke(*command)
    monkeypatch.setattr(report, "report_page", lambda *args: 1 / 0)
    mistake = invoke(*command)
    for done, reason in ((no_place, "cannot write run/"), (mistake, "ZeroDivisionError: division")):
        assert done.returncode == 0, done.stderr
        assert f"Warning: the report was not written: {reason}" in done.stderr
        assert re.search("^(Next|Try): ", done.stderr, re.M)
