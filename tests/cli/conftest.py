"""A folder to be in, and a run that may be spoilt."""

import shutil

import pytest
from oracle.command_line import TINY, invoke, write_chain


@pytest.fixture
def at(tmp_path, monkeypatch):
    """An empty folder to be in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    file = write_chain(folder / "log.parquet", num_users=10, num_items=30)
    done = invoke("train", file, "--out", folder / "run", "--cache", folder / "cache", *TINY)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def run(finished, at):
    """A finished run that may be spoilt."""
    shutil.copytree(finished, at / "run")
    return at / "run"
