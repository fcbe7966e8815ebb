"""A working folder, and a cache folder for synthetic logs."""

from pathlib import Path

import pytest

from experiments.real.sets import Place


def pytest_collection_modifyitems(items):
    """Mark these tests as slow: `make test` runs them, `make check` does not."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def at(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A cache of logs, filled once."""
    folder = tmp_path_factory.mktemp("real")
    return Place(folder / "data", folder / "cache")
