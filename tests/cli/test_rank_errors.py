"""Errors under torchrun: one line for all ranks, in torchrun's file, and no second attempt."""

import json
import os
import signal

import pytest
import typer
from oracle.command_line import names
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from tapas import DataError, PeerError, UsageError
from tapas.__main__ import main
from tapas.cli.exit_codes import report_errors
from tapas.cli.rank_errors import give_up_again, report_error

WORDS = "log.csv has no column 'nope' for the user."


@pytest.fixture
def become(tmp_path, monkeypatch):
    """Make this process a rank in an attempt of a job; returns its error file."""

    def become(rank, attempt=0):
        file = tmp_path / f"attempt_{attempt}" / str(rank) / "error.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
        return file

    return become


def fail(error):
    with pytest.raises(typer.Exit) as ended, report_errors():
        raise error
    return ended.value.exit_code


@pytest.mark.parametrize("kind", [UsageError, DataError])
def test_a_mistake_is_said_once_and_ends_all_later_attempts(become, capsys, kind):
    for rank in range(3):
        file = become(rank)
        assert fail(kind(WORDS)) == 1
        failure = ProcessFailure(rank, pid=1, exitcode=1, error_file=str(file))  # as torchrun
        assert failure.message["message"] == WORDS
    assert capsys.readouterr() == ("", f"tapas: {WORDS}\n")
    for attempt in (1, 2):
        file = become(0, attempt)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        assert json.loads(file.read_text())["message"]["message"] == WORDS
    assert capsys.readouterr() == ("", "")


def test_another_error_of_another_rank_is_said_too(become, capsys):
    become(0)
    fail(UsageError("one."))
    become(1)
    fail(UsageError("two."))
    assert capsys.readouterr().err == "tapas: one.\ntapas: two.\n"


def test_a_job_is_tried_again_after_the_loss_of_a_rank(become):
    become(0)
    fail(PeerError("rank 1 died."))
    become(1)  # killed: without a file
    become(0, 1)
    assert give_up_again() is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"errorTraits": {"category": "tapas"}}'])
def test_error_files_of_others_are_left_alone(become, content):
    become(0).write_text(content)
    file = become(0, 1)
    assert give_up_again() is None
    assert not file.exists()


def test_a_rank_that_is_ended_by_torchrun_says_its_error_first(become):
    """Another rank, which has found it said, may have failed before this one has said it."""
    ended, said = [], []

    def show():
        os.kill(os.getpid(), signal.SIGTERM)
        said.append(WORDS)

    file = become(0)
    before = signal.signal(signal.SIGTERM, lambda *_: ended.append("too early"))
    try:
        report_error(WORDS, 1, show, try_again=False)
        assert (ended, said) == ([], [WORDS])
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended  # from now on as before
    finally:
        signal.signal(signal.SIGTERM, before)
    assert json.loads(file.read_text())["message"]["message"] == WORDS
    assert names(file.parent) == ["error.json"]


def test_wrong_usage_is_said_once(become, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["tapas", "train", "--batches", "3"])
    for rank in range(2):
        become(rank)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
    assert capsys.readouterr().err.count("Error: No such option: --batches") == 1
    become(0, 1)
    assert give_up_again() == 2


def test_without_torchrun_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for value in ("", "/dev/null", str(tmp_path / "gone" / "error.json")):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", value)
        assert fail(UsageError(WORDS)) == 1
        assert give_up_again() is None
    assert capsys.readouterr().err == f"tapas: {WORDS}\n" * 3
    assert names(tmp_path) == []
