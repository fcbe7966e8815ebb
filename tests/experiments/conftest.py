"""A folder to be in, and one for made-up logs."""

from pathlib import Path

import pytest

from experiments.real.sets import Place


def pytest_collection_modifyitems(items):
    """`make check` is for the package; `make test` runs these, too."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)


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
