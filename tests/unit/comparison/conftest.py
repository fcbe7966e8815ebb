"""A cache folder for synthetic logs, filled once."""

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("comparison")
