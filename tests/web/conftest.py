"""Runs and applications that the tests of a process share."""

import pytest
from web.small_runs import KINDS, Runs, Served


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def served(runs):
    """All kinds of models in one application; the first is the mixture."""
    return Served(*(runs[kind] for kind in KINDS))
