"""Workers and servers against one process with as many virtual shards: the same, to rounding."""

import pytest
import torch
from contracts.tables import served

from tapas import LocalTable, Priority, TapasSoftmax, Top, UsageError
from tapas.exact_state import pack
from tapas.optim import LazyAdam, RowwiseAdagrad
from tapas.rng import stream
from tapas.servers.channel import Post
from tapas.servers.peers import InProcess
from tapas.servers.row_server import RowServer
from tapas.servers.served_table import ServedTable
from tapas.tables.shard import TableSpec

B, C, D = 6, 53, 5


def rows_on_servers(num_servers, optimizer, bias=None, seed=0, fused=True, **spec):
    spec = TableSpec(C, D, num_servers, optimizer, seed=seed, **spec)
    parts = [None if bias is None else bias[spec.layout().ids_of(j)] for j in range(num_servers)]
    servers = [RowServer(j, {"rows": spec.shard(j, parts[j])}) for j in range(num_servers)]
    return ServedTable(Post(InProcess("server", servers)), "rows", spec, fused=fused)


def train(table, *, rule, presample, steps=5):
    head = TapasSoftmax(
        table=table,
        num_samples=11,
        presample_factor=presample,
        selection=rule,
        temperature=0.8,
    )
    losses, grads = [], []
    for step in range(steps):
        draw = stream(7, "batch", step)
        query = torch.randn(B, D, generator=draw, requires_grad=True)
        target = torch.randint(-1, C, (B, 3), generator=draw)
        target[target < 0] = -100
        target[:, 0] = torch.randint(C, (B,), generator=draw)
        history = torch.randint(C, (B,), generator=draw)
        with head.accumulate():
            loss = head(query + table.lookup(history), target)
            loss.backward()
        losses.append(loss.detach())
        grads.append(query.grad)
    table.flush()
    return torch.stack(losses), torch.stack(grads), table.state_dict()


@pytest.mark.parametrize(
    ("num_servers", "presample", "rule"),
    [
        (1, 3, Priority()),
        (2, 1, Priority()),
        (2, 8, Top()),
        (5, 3, Top()),
        (5, 8, Priority(score_queries=2)),
        (5, 3, Priority()),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "optimizer", [RowwiseAdagrad.fused(lr=0.3), LazyAdam.fused(lr=0.1)], ids=repr
)
def test_a_step_is_that_of_one_process_with_as_many_shards(num_servers, presample, rule, optimizer):
    bias = torch.randn(C, generator=stream(0, "bias"))
    one = LocalTable(C, D, row_optimizer=optimizer, num_shards=num_servers, bias=bias, seed=3)
    many = rows_on_servers(num_servers, optimizer, bias, seed=3)
    want = train(one, rule=rule, presample=presample)
    got = train(many, rule=rule, presample=presample)
    torch.testing.assert_close(got, want)
    numbers = pack({"seed": 3, "num_updates": 5, "lr": optimizer.lr})
    assert all(torch.equal(found[2]["_extra_state"], numbers) for found in (got, want))


@pytest.mark.parametrize("num_servers", [1, 3])
def test_a_step_of_an_optimizer_is_that_of_one_process_whose_optimizer_has_the_same_numbers(
    num_servers,
):
    """Those of the optimizer, also as they change; what servers were built with does not count."""
    tables = (
        LocalTable(C, D, num_shards=num_servers),
        rows_on_servers(num_servers, LazyAdam.fused(lr=7.0), fused=False),
    )
    losses, states = [], []
    for table in tables:
        optimizer = LazyAdam(table, lr=0.1, betas=(0.8, 0.9), weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        head = TapasSoftmax(table=table, num_samples=11, presample_factor=3)
        for step in range(4):
            draw = stream(7, "batch", step)
            query = torch.randn(B, D, generator=draw, requires_grad=True)
            target = torch.randint(C, (B, 2), generator=draw)
            optimizer.zero_grad()
            loss = head(query, target)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        states.append(table.state_dict())
    torch.testing.assert_close(losses[:4], losses[4:])
    local = {**states[0], **tables[0].gradients.state}
    for name in ("weight", "bias", "weight_mean", "bias_square"):
        torch.testing.assert_close(local[name], states[1][name])
    assert int(local["step"]) == int(states[1]["_extra_state"][1]) == 4


def test_an_optimizer_of_another_kind_than_the_servers_is_refused():
    table = rows_on_servers(2, LazyAdam.fused(), fused=False)
    with pytest.raises(UsageError) as error:
        RowwiseAdagrad(table)
    assert str(error.value) == (
        "the servers move 'rows' by LazyAdam, not by RowwiseAdagrad: what it remembers is on the "
        "servers. Build both alike."
    )
    assert table.gradients.optimizer is None


def test_a_table_without_biases():
    one = LocalTable(C, D, row_optimizer=LazyAdam.fused(lr=0.1), num_shards=3, bias=False)
    many = rows_on_servers(3, LazyAdam.fused(lr=0.1), has_bias=False)
    want = train(one, rule=Top(), presample=3)
    got = train(many, rule=Top(), presample=3)
    torch.testing.assert_close(got, want)


def test_a_state_goes_from_servers_to_one_process_and_back_to_other_servers():
    """Three servers, one process, two servers: rows by id, whoever has them."""
    many = rows_on_servers(3, LazyAdam.fused(lr=0.1))
    train(many, rule=Top(), presample=3)
    one = LocalTable(C, D, row_optimizer=LazyAdam.fused(lr=0.1), num_shards=3)
    one.load_state_dict(many.state_dict())
    fewer = rows_on_servers(2, LazyAdam.fused(lr=0.1))
    fewer.load_state_dict(one.state_dict())
    ids = torch.arange(C)
    for table in (one, fewer):
        assert all(map(torch.equal, table.rows(ids), many.rows(ids)))
    states = [table.state_dict() for table in (many, one, fewer)]
    assert int(states[0]["_extra_state"][1]) == 5
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(state[name], states[0][name]) for name in state)


def test_shards_and_servers_must_be_as_many():
    spec = TableSpec(C, D, 3, RowwiseAdagrad.fused())
    servers = [RowServer(j, {"rows": spec.shard(j)}) for j in range(2)]
    with pytest.raises(UsageError) as error:
        ServedTable(Post(InProcess("server", servers)), "rows", spec)
    assert str(error.value) == (
        "the rows of 'rows' are in 3 shards, but there are 2 servers. One shard goes to each "
        "server."
    )


def test_a_step_is_two_round_trips_however_many_targets():
    """Rows of targets ride with the kept; gradients of inputs and softmax ride together."""
    with served(3) as build:
        table = build(RowwiseAdagrad.fused())
        head = TapasSoftmax(table=table, num_samples=7, presample_factor=3)
        query = torch.randn(4, table.dim, generator=stream(0, "q"), requires_grad=True)
        before = table.post.traffic.round_trips
        head(query, torch.randint(31, (4, 5), generator=stream(0, "t"))).backward()
        assert table.post.traffic.round_trips - before == 2
