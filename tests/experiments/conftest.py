"""A folder to be in, and one for made-up logs."""

import pytest

from experiments.real.sets import Place


@pytest.fixture
def at(tmp_path, monkeypatch):
    """An empty folder to be in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """For logs, filled once."""
    folder = tmp_path_factory.mktemp("real")
    return Place(folder / "data", folder / "cache")
