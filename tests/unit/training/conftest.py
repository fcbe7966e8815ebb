"""A log that is read and split once for all tests in this folder."""

import pytest
from oracle.command_line import chain_log

from tapas.data.splits import SplitConfig, split_log


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    log = chain_log(tmp_path_factory.mktemp("log"), num_users=30, num_items=40, num_baskets=6)
    return log, split_log(log, SplitConfig())
