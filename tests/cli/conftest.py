"""An empty working directory, and a finished run that a test may change."""

import shutil

import pytest
from oracle.command_line import PLAIN, TINY, invoke, write_chain


@pytest.fixture
def at(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    file = write_chain(folder / "log.parquet", num_users=10, num_items=30)
    to = ("--out", folder / "run", "--cache", folder / "cache")
    done = invoke("train", file, *to, *TINY, *PLAIN)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def run(finished, at):
    """A copy of a finished run, which the test may change."""
    shutil.copytree(finished, at / "run")
    return at / "run"
