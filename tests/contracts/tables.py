"""The class tables of the contract tests, and functions that inspect any of them."""

from contextlib import nullcontext
from dataclasses import asdict, replace

import pytest
import torch
from contracts import multi_rank_table
from contracts.multi_rank_table import MultiRankTable

from tapas import LocalTable, Priority, optim
from tapas.optim import Adagrad
from tapas.rng import stream
from tapas.servers.channel import ServerChannel
from tapas.servers.peers import InProcess
from tapas.servers.row_server import RowServer
from tapas.servers.served_table import ServedTable
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import SecondPass
from tapas.tables.shard import TableSpec

B, C, D, P = 5, 31, 3, 17


def shards(num_shards):
    def build(formula, fused=True):
        optimizer = formula if fused else None
        return LocalTable(C, D, row_optimizer=optimizer, num_shards=num_shards)

    return nullcontext(build)


def on_servers(spec, *, fused=True, peers=InProcess):
    """A table whose servers are objects of this process."""
    servers = [RowServer(j, {"rows": spec.shard(j)}) for j in range(spec.num_shards)]
    return ServedTable(ServerChannel(peers("server", servers)), "rows", spec, fused=fused)


def served(num_servers):
    def build(formula, fused=True):
        return on_servers(TableSpec(C, D, num_servers, formula), fused=fused)

    return nullcontext(build)


# A backend is a context with a function that builds a table with a formula, by which rows move
# in `backward` if it is fused, else in the steps of an optimizer.
CONTEXTS = {
    "local": lambda: shards(1),
    "2 shards": lambda: shards(2),
    "3 shards": lambda: shards(3),
    "1 server": lambda: served(1),
    "3 servers": lambda: served(3),
    "1 rank": lambda: multi_rank_table.multi_rank_tables(1, C, D),
    "3 ranks": lambda: multi_rank_table.multi_rank_tables(3, C, D),
}
BACKENDS = [pytest.param(name, marks=[pytest.mark.slow] * (name == "3 ranks")) for name in CONTEXTS]


def builder(backend):
    """Yields a function that builds tables of `backend`; closes them all in the end."""
    tables = []
    with CONTEXTS[backend]() as build_one:

        def build(formula=Adagrad.fused(), *, fused=True):  # noqa: B008
            tables.append(build_one(formula, fused))
            return tables[-1]

        yield build
        for table in tables:
            table.close()
            table.close()  # twice is safe


def draw(*shape, name="draw"):
    return torch.randn(*shape, generator=stream(0, name))


def attach(table, formula):
    """Attach the optimizer of `tapas.optim` with the name and hyperparameters of `formula`."""
    kind, numbers = getattr(optim, formula.name), asdict(formula)
    if isinstance(table, MultiRankTable):
        return table.attach(kind, numbers)
    multi_rank_table.attach(table, kind, numbers)
    return table.stepper


def on_every_rank(table, function, *args):
    """The results of `function(table)` on each rank; such functions are in `multi_rank_table`."""
    if isinstance(table, MultiRankTable):
        return table.on_every_rank(function, *args)
    return [function(table, *args)]


def optimizer_state(table):
    """The optimizer's state of the rows by class; empty for servers, which keep it."""
    states = on_every_rank(table, multi_rank_table.row_state_of)
    return table.merge_states(states) if isinstance(table, MultiRankTable) else states[0]


def waiting(table):
    """Queued gradients (C, D) and (C,); None if no rank has any."""
    found = on_every_rank(table, multi_rank_table.queued_gradients_of)
    if None in found:
        assert not any(found), "some ranks have queued gradients, and some have none"
        return None
    if isinstance(table, MultiRankTable):
        return tuple(map(table.by_class, zip(*found, strict=True)))
    return found[0]


def everything(table):
    """Rows, biases and optimizer state by class: {name: (C, ...)}."""
    table.flush()
    state = {**table.state_dict(), **optimizer_state(table)}
    state = {name: part.clone() for name, part in state.items() if part.dim() and len(part) == C}
    return state | dict(zip(("rows", "biases"), table.rows(torch.arange(C)), strict=True))


def num_updates(table):
    """Number of updates of the rows so far."""
    numbers = table.state_dict()["_extra_state"]
    counted = numbers[1] if len(numbers) in (3, 6) else 0  # of fused tables: seed, updates, lr
    return int(optimizer_state(table).get("step", counted))


def same(before, after, but=()):
    others = torch.tensor([c not in but for c in range(C)])
    assert before.keys() == after.keys()
    return all(torch.equal(before[name][others], after[name][others]) for name in before)


def set_rows(table, weight, bias):
    """Set exact values by `update`: the second step corrects the rounding of the first."""
    for _ in range(2):
        table.flush()
        now, now_bias = table.rows(torch.arange(C))
        table.update(torch.arange(C), now - weight, now_bias - bias)
    table.flush()
    assert torch.equal(table.rows(torch.arange(C))[0], weight)
    return table


def select(
    table, query, pool, keep, *, rule=None, target=None, complete=True, generator=None, tau=0.7
):
    """The classes of `pool` that the second pass keeps if these queries score it."""
    target = torch.full((len(query), 1), -1) if target is None else target
    how = SecondPass.draw(
        GlobalBatch.local(query, target),
        pool,
        keep,
        rule or Priority(),
        tau,
        generator=generator or stream(0, "keep"),
    )
    return table.select(pool, how and replace(how, complete=complete))
