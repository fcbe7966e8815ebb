"""Every sentence of `ClassTable` once more, for rows that are kept by two processes on Ray."""

import sys
from functools import partial
from itertools import count

import pytest
from contracts import test_table_answers, test_tables
from contracts.tables import C, D

from tapas.optim import Adagrad
from tapas.servers.channel import Post
from tapas.servers.row_server import RowServer
from tapas.servers.served_table import ServedTable
from tapas.tables.shard import TableSpec

ray = pytest.importorskip("ray")
from tapas.servers.ray_peers import RayPeers  # noqa: E402
from tapas.servers.ray_session import join_ray  # noqa: E402

pytestmark = pytest.mark.slow
NUM_SERVERS = 2
IN_THIS_PROCESS_ONLY = {  # looks into its own rule, of which a server has a copy
    "test_select_draws_one_number_for_each_class_of_the_pool_from_the_generator_alone",
}
globals().update(
    (name, test)
    for module in (test_tables, test_table_answers)
    for name, test in vars(module).items()
    if name.startswith("test_") and name not in IN_THIS_PROCESS_ONLY
)


class Shelf:
    """One process that is server `number` of any number of tables: starting it takes seconds."""

    def __init__(self, number):
        self.number, self.servers = number, {}

    def put(self, key, spec):
        self.servers[key] = RowServer(self.number, {"rows": spec.shard(self.number)})

    def ask(self, key, verb, *args):
        return getattr(self.servers[key], verb)(*args)


class Shelved:
    """Peers that are the servers under one `key`."""

    def __init__(self, peers, key):
        self.peers, self.key = peers, key
        self.kind, self.size, self.share = peers.kind, peers.size, peers.share

    def call(self, number, verb, *args):
        return self.peers.call(number, "ask", self.key, verb, *args)

    def close(self):
        """Others are on the same shelf."""


@pytest.fixture(scope="module")
def shelves():
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # servers cannot import it
    with join_ray(object_store_bytes=100 * 2**20):
        peers = RayPeers.start("server", [partial(Shelf, j) for j in range(NUM_SERVERS)])
        yield peers
        peers.close()


@pytest.fixture
def make(shelves):
    def build(formula=Adagrad.fused(), *, fused=True):  # noqa: B008
        key, spec = next(KEYS), TableSpec(C, D, NUM_SERVERS, formula)
        for j in range(NUM_SERVERS):
            shelves.call(j, "put", key, spec).answer()
        return ServedTable(Post(Shelved(shelves, key)), "rows", spec, fused=fused)

    return build


KEYS = count()
