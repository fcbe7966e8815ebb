"""`tapas cache`: lists prepared logs, and removes them and nothing else."""

import fcntl
import json
import os
from pathlib import Path

import pytest
from damage import flock_of_nfs
from oracle.command_line import TINY, invoke, last_line, names, write_chain

from tapas.cli.options import cache_folder
from tapas.data import cache as prepared
from tapas.training.run_folder import open_run


def release():
    """Let go of the logs that this process uses, as if it had ended."""
    while prepared._held:
        os.close(prepared._held.popitem()[1])


@pytest.fixture
def logs(at, monkeypatch):
    """The default cache with two prepared logs, the first of them also in a run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(at / "xdg"))
    for name in ("one.parquet", "two.csv"):
        write_chain(at / name, num_users=10, num_items=30)
    assert invoke("train", "one.parquet", "--out", "run", *TINY).returncode == 0
    assert "xdg/tapas/logs (see `tapas cache`)." in invoke("inspect", "two.csv").stderr
    release()
    folder = at / "xdg" / "tapas" / "logs"
    for day, log in enumerate(prepared.prepared_logs(folder)[::-1]):  # one.parquet first
        os.utime(log.folder, (86_400 * (20_000 + day), 86_400 * (20_000 + day)))
    yield folder
    release()


def test_logs_are_listed_with_size_time_and_files(logs, at):
    found = json.loads(invoke("cache", "--json").stdout)
    assert found["folder"] == str(logs)
    two, one = found["logs"]
    assert [log["files"] for log in (one, two)] == [
        [str(at / "one.parquet")],
        [str(at / "two.csv")],
    ]
    assert one["bytes"] > two["bytes"] / 2 > 0
    done = invoke("cache")
    assert [" ".join(line.split()[-1:]) for line in done.stdout.splitlines()[2:4]] == [
        str(at / "two.csv"),
        str(at / "one.parquet"),
    ]
    assert done.stdout.splitlines()[-1].startswith("2 prepared logs, ")
    assert done.stdout.endswith(f" kB, in {logs}.\n")
    assert done.stderr == "Remove them with `tapas cache --empty`.\n"


def test_a_log_that_is_used_again_comes_first(logs):
    invoke("inspect", "one.parquet")
    assert "one.parquet" in invoke("cache").stdout.splitlines()[2]


def test_emptying_removes_the_logs_and_leaves_runs_and_other_files(logs, at, monkeypatch):
    mine = {"notes.txt": "mine", "0" * 32: "mine", "." + "f" * 32: "mine"}
    for name, text in mine.items():
        (logs / name).write_text(text)
    (logs / ("a" * 32)).mkdir()
    (logs / ("a" * 32) / "log.json").write_text("{}")
    (logs / ("a" * 32) / "thesis.txt").write_text("mine")
    (logs / f".{'b' * 32}.0123456789abcdef.unfinished").mkdir()  # of a killed process
    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)
    done = invoke("cache", "--empty", "--yes")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Removed 2 prepared logs from {logs}; ")
    assert done.stdout.endswith(" kB freed.\n")
    assert done.stderr == f"Left 4 other entries in {logs} alone.\n"
    assert names(logs) == sorted([*mine, "a" * 32])
    assert (logs / ("a" * 32) / "thesis.txt").exists()
    assert names(at) == ["one.parquet", "run", "two.csv", "xdg"]
    assert len(open_run(at / "run").log.item_keys.keys(range(3))) == 3
    assert invoke("evaluate", "run").returncode == 0
    assert invoke("cache").stdout == f"There is no prepared log in {logs}.\n"


def test_a_log_in_use_is_kept(logs, at):
    invoke("inspect", "two.csv")
    done = invoke("cache", "--empty", "--yes")
    assert done.stdout.startswith(f"Removed 1 prepared log from {logs}; ")
    assert done.stderr == (f"Kept the prepared log of {at / 'two.csv'}: a process is using it.\n")
    assert len(names(logs)) == 1


def test_off_a_terminal_nothing_is_removed_without_yes(logs):
    before = names(logs)
    assert last_line(invoke("cache", "--empty")) == (
        "--empty removes 2 prepared logs. Add --yes to do so."
    )
    assert last_line(invoke("cache", "--yes")) == "--yes can be used with --empty only."
    assert names(logs) == before


def test_a_cache_that_is_not_there_is_empty(at):
    assert invoke("cache", "--cache", "gone").stdout == "There is no prepared log in gone.\n"
    done = invoke("cache", "--cache", "gone", "--empty")
    assert done.stdout == "Removed 0 prepared logs from gone; 0 B freed.\n"
    (at / "file").write_text("")
    assert last_line(invoke("cache", "--cache", "file")) == (
        "cannot read the cache file: Not a directory."
    )
    assert names(at) == ["file"]


def test_logs_of_earlier_versions_and_damaged_ones_are_listed_too(logs):
    newest = prepared.prepared_logs(logs)[0].folder
    (newest / "log.json").write_text("{broken")
    assert "unknown files (prepared by an earlier version)" in invoke("cache").stdout
    assert invoke("cache", "--empty", "--yes").stdout.startswith("Removed 2 prepared logs")


@pytest.mark.parametrize("value", ["", "relative", "./here"])
def test_a_relative_xdg_cache_home_is_ignored(monkeypatch, value):
    """As the XDG specification has it: it would be another folder in each working directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert cache_folder(None) == Path.home() / ".cache" / "tapas" / "logs"
