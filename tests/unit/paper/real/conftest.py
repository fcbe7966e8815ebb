"""A folder for made-up logs, filled once."""

import pytest

from tapas.paper.real.sets import Place


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    return Place(folder / "data", folder / "cache")
