"""Full and read-only disks, Ctrl-C and SIGTERM: files stay complete, and runs can continue."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl
import pytest
from forked import Forked
from oracle.command_line import (
    ENVIRONMENT,
    TINY,
    file_size_limit,
    invoke,
    last_line,
    names,
    tapas,
    write_chain,
)

from tapas.checkpoints.folder import CheckpointFolder
from tapas.data import prepare as preparing
from tapas.training import run as session

pytestmark = pytest.mark.slow


def test_a_read_only_disk_is_refused_before_anything_is_read(at, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert last_line(invoke("train", "x.csv", "--out", "out")) == (
        "cannot write into out: Read-only file system. Choose another folder with --out."
    )
    assert names(at) == []


WRITERS = [
    *(("export", "run", "--to", to) for to in ("a.faiss", "a.safetensors", "a.parquet", "a.pt2")),
    ("export", "run", "--to", "folder"),
    *(
        ("recommend", "run", "--users", "users.txt", "--out", f"a.{e}")
        for e in ("parquet", "jsonl")
    ),
    ("recommend", "run", "--users", "users.txt", "--out", "a.csv"),
]


@pytest.mark.parametrize("command", WRITERS, ids=lambda command: command[-1])
def test_a_full_disk_leaves_no_partial_file(run, at, command):
    (at / "users.txt").write_text("u1\nu2\n")
    with file_size_limit(300):
        words = last_line(invoke(*command))
    assert words.startswith(f"cannot write {command[-1]}")
    assert "File too large" in words
    assert names(at) == ["run", "users.txt"]


def test_a_disk_too_full_for_the_prepared_log_leaves_nothing(at):
    write_chain(at / "log.parquet", num_users=40)
    with file_size_limit(2000):
        done = invoke("train", "log.parquet", "--out", "out", "--cache", "cache", *TINY)
    assert last_line(done).startswith("the prepared log could not be written to cache: ")
    assert names(at / "cache") == []
    assert not (at / "out").exists()


def limited():
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))


def test_a_disk_that_fills_during_training_leaves_valid_checkpoints(at):
    """Its files may not grow beyond 60 kB; a checkpoint of this model has more."""
    write_chain(at / "log.parquet", num_users=10)
    assert invoke("inspect", "log.parquet", "--cache", "cache").returncode == 0

    flags = ("log.parquet", "--out", "out", "--cache", "cache", *TINY, "--dim", 64)
    done = tapas("train", *flags, before=limited)
    assert last_line(done) == (
        "cannot save checkpoint step 2 into out/checkpoints: File too large. There is no valid "
        "checkpoint. Free some space and continue with --resume."
    )
    assert CheckpointFolder(at / "out" / "checkpoints").steps() == []
    assert names(at / "out" / "checkpoints") == []
    done = tapas("train", "--resume", "out")
    assert done.returncode == 0, done.stderr
    assert "There is no checkpoint yet: starting again from step 0.\n" in done.stderr


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_ctrl_c_leaves_nothing_while_reading_and_later_says_how_to_continue(at, monkeypatch):
    write_chain(at / "log.parquet", num_users=10)
    train = ("train", "log.parquet", "--out", "out", "--cache", "cache", *TINY)
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "write_log", interrupted)
        assert last_line(invoke(*train), 130) == "stopped by Ctrl-C."
    assert names(at) == ["cache", "log.parquet"]
    assert names(at / "cache") == []
    with monkeypatch.context() as patch:
        patch.setattr(session, "opened_trainer", interrupted)  # before the first step
        done = invoke(*train)
    assert last_line(done, 130) == "stopped by Ctrl-C."
    assert done.stderr.splitlines()[-2] == "Continue with `tapas train --resume out`."
    done = invoke("train", "--resume", at / "out")
    assert done.returncode == 0
    assert done.stderr.startswith("There is no checkpoint yet: starting again from step 0.\n")


LONG = ("log.parquet", "--out", "out", "--cache", "cache", "--threads", 1, "--steps", 100_000,
        "--dim", 4, "--batch", 4, "--set", "loop.patience=99999")  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_a_checkpoint_and_says_how_to_continue(at, number, code):
    write_chain(at / "log.parquet", num_users=10, num_items=30)
    flags = ("--set", "loop.checkpoint_seconds=0.2", "--json")
    process = Forked("train", *LONG, *flags, cwd=at, env=ENVIRONMENT)
    process.wait_for("Training on")
    while not list(at.glob("out/checkpoints/step-*")):
        assert process.is_alive()
        time.sleep(0.05)
    process.send_signal(number)
    done = process.end(timeout=60)
    assert done.returncode == code, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["reason"] == "interrupted"
    assert CheckpointFolder(at / "out" / "checkpoints").steps()[-1] == outcome["step"]
    lines = [
        line
        for line in done.stderr.split("Training on")[1].splitlines()[1:]
        if not line.startswith("step ")  # one for each evaluation
    ]
    assert lines[0] == "Stopping after this step; saving a checkpoint."
    assert lines[1].startswith(f"Interrupted at step {outcome['step']:,}; a checkpoint is saved.")
    assert lines[2] == "Continue with `tapas train --resume out`."
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, "stopped by Ctrl-C."),
        (signal.SIGTERM, 143, "stopped by SIGTERM."),
    ],
)
def test_a_signal_while_reading_leaves_no_run(at, number, code, words):
    num_rows = 1_500_000
    rows = pl.int_range(num_rows, eager=True)
    pl.DataFrame({"user": rows % 50_021, "item": rows * 7 % 30_011, "time": rows}).write_csv(
        "log.csv"
    )
    process = Forked("train", "log.csv", *LONG[1:], cwd=at, env=ENVIRONMENT)
    process.wait_for("Reading log.csv")
    process.send_signal(number)
    done = process.end(timeout=60)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.splitlines()[-1] == f"tapas: {words}"
    assert not (at / "out").exists()
    assert not (at / "cache").exists() or names(at / "cache") == []


SIGTERM_BIT = 1 << (signal.SIGTERM - 1)
WORDS = {
    signal.SIGINT: "tapas: stopped by Ctrl-C.\n",
    signal.SIGTERM: "tapas: stopped by SIGTERM.\n",
}


def catches_sigterm(pid):
    """Python itself catches SIGINT only, so this is the first thing that the command does."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) & SIGTERM_BIT)


@pytest.mark.parametrize("number", WORDS)
def test_a_signal_while_libraries_are_imported_is_one_line(number):
    """The delays cover the seconds that importing torch takes."""
    ends = []
    for delay in [0.0, 0.1, 0.4, 0.8, 1.2, 1.6]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tapas", "info"], env=ENVIRONMENT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        while not catches_sigterm(process.pid):
            time.sleep(0.001)
        time.sleep(delay)
        process.send_signal(number)
        began = time.monotonic()
        found, said = process.communicate(timeout=60)
        if not found:  # else the work was done, and Python itself is ending
            ends.append((process.returncode, said, time.monotonic() - began < 1))
    assert ends == [(128 + number, WORDS[number], True)] * len(ends)
    assert len(ends) >= 3
