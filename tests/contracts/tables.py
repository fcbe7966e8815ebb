"""The class tables under contract, and ways to look at any of them through its verbs."""

from contextlib import nullcontext

import pytest
import torch
from contracts.mirrored import mirrored

from tapas import Adagrad, LocalTable, Priority, stream
from tapas.tables.peers import InProcess
from tapas.tables.post import Post
from tapas.tables.served import ServedTable
from tapas.tables.server import RowServer
from tapas.tables.shard import TableSpec

B, C, D, P = 5, 31, 3, 17


def shards(num_shards):
    return nullcontext(
        lambda optimizer: LocalTable(C, D, row_optimizer=optimizer, num_shards=num_shards)
    )


def served(num_servers):
    """Servers without their processes: what they say and do is the same."""

    def build(optimizer):
        spec = TableSpec(C, D, num_servers, optimizer)
        servers = [RowServer(j, {"rows": spec.shard(j)}) for j in range(num_servers)]
        return ServedTable(Post(InProcess("server", servers)), "rows", spec)

    return nullcontext(build)


# A backend is a context with a function of the row optimizer; a further one is a further line.
CONTEXTS = {
    "local": lambda: shards(1),
    "2 shards": lambda: shards(2),
    "3 shards": lambda: shards(3),
    "1 server": lambda: served(1),
    "3 servers": lambda: served(3),
    "1 rank": lambda: mirrored(1, C, D),
    "3 ranks": lambda: mirrored(3, C, D),
}
BACKENDS = [pytest.param(name, marks=[pytest.mark.slow] * (name == "3 ranks")) for name in CONTEXTS]


def builder(backend):
    """Yields a function that builds tables of `backend`; closes them all in the end."""
    tables = []
    with CONTEXTS[backend]() as build_one:

        def build(optimizer=Adagrad()):  # noqa: B008
            tables.append(build_one(optimizer))
            return tables[-1]

        yield build
        for table in tables:
            table.close()


def draw(*shape, name="draw"):
    return torch.randn(*shape, generator=stream(0, name))


def everything(table):
    """Rows, biases and optimizer state, class by class: {name: (C, ...)}."""
    table.flush()
    state = {k: v.clone() for k, v in table.state_dict().items() if isinstance(v, torch.Tensor)}
    return state | dict(zip(("rows", "biases"), table.rows(torch.arange(C)), strict=True))


def same(before, after, but=()):
    others = torch.tensor([c not in but for c in range(C)])
    assert before.keys() == after.keys()
    return all(torch.equal(before[name][others], after[name][others]) for name in before)


def set_rows(table, weight, bias):
    """Exact values through `update` alone: the second step repairs the rounding of the first."""
    for _ in range(2):
        table.flush()
        now, now_bias = table.rows(torch.arange(C))
        table.update(torch.arange(C), now - weight, now_bias - bias)
    table.flush()
    assert torch.equal(table.rows(torch.arange(C))[0], weight)
    return table


def select(table, query, pool, keep, *, rule=None, generator=None, **options):
    defaults = {"own": torch.full((len(query), 1), -1), "complete": True}
    return table.select(
        query,
        pool,
        keep,
        0.7,
        rule=rule or Priority(),
        generator=generator or stream(0, "keep"),
        **(defaults | options),
    )
