"""`ServedTable` against a `LocalTable` with as many shards: equal up to rounding."""

import pytest
import torch

from tapas import LocalTable, Priority, TapasSoftmax, Top, UsageError
from tapas.exact_state import pack
from tapas.optim import LazyAdam, RowwiseAdagrad
from tapas.rng import stream
from tapas.servers.channel import ServerChannel
from tapas.servers.peers import InProcess
from tapas.servers.row_server import RowServer
from tapas.servers.served_table import ServedTable
from tapas.tables.shard import TableSpec

B, C, D = 6, 53, 5


def rows_on_servers(num_servers, optimizer, bias=None, seed=0, fused=True, **spec):
    spec = TableSpec(C, D, num_servers, optimizer, seed=seed, **spec)
    parts = [None if bias is None else bias[spec.layout().ids_of(j)] for j in range(num_servers)]
    servers = [RowServer(j, {"rows": spec.shard(j, parts[j])}) for j in range(num_servers)]
    return ServedTable(ServerChannel(InProcess("server", servers)), "rows", spec, fused=fused)


ADAGRAD, ADAM = RowwiseAdagrad.fused(lr=0.3), LazyAdam.fused(lr=0.1)


def train(table, *, rule=None, presample=3, optimizer=None):
    """Losses, gradients of queries, and the state after five steps."""
    head = TapasSoftmax(
        table=table,
        num_samples=11,
        presample_factor=presample,
        selection=rule or Top(),
        temperature=0.8,
    )
    schedule = optimizer and torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    losses, grads = [], []
    for step in range(5):
        draw = stream(7, "batch", step)
        query = torch.randn(B, D, generator=draw, requires_grad=True)
        target = torch.randint(-1, C, (B, 3), generator=draw)
        target[target < 0] = -100
        target[:, 0] = torch.randint(C, (B,), generator=draw)
        history = torch.randint(C, (B,), generator=draw)
        with head.accumulate():
            loss = head(query + table.lookup(history), target)
            loss.backward()
        if optimizer:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        grads.append(query.grad)
    table.flush()
    return torch.stack(losses), torch.stack(grads), table.state_dict()


@pytest.mark.parametrize(
    ("num_servers", "presample", "rule", "optimizer", "has_bias"),
    [
        (1, 3, Priority(), ADAGRAD, True),
        (2, 8, Top(), ADAM, True),
        (3, 3, Top(), ADAM, False),
        (5, 1, Priority(), ADAGRAD, True),
        (5, 3, Priority(), ADAM, True),
        (5, 8, Priority(score_queries=2), ADAGRAD, True),
    ],
    ids=repr,
)
def test_a_step_equals_that_of_one_process_with_as_many_shards(
    num_servers, presample, rule, optimizer, has_bias
):
    bias = torch.randn(C, generator=stream(0, "bias")) if has_bias else None
    start = bias if has_bias else False
    one = LocalTable(C, D, row_optimizer=optimizer, num_shards=num_servers, bias=start, seed=3)
    many = rows_on_servers(num_servers, optimizer, bias, seed=3, has_bias=has_bias)
    want = train(one, rule=rule, presample=presample)
    got = train(many, rule=rule, presample=presample)
    torch.testing.assert_close(got, want)
    numbers = pack({"seed": 3, "num_updates": 5, "lr": optimizer.lr})
    assert all(torch.equal(found[2]["_extra_state"], numbers) for found in (got, want))


@pytest.mark.parametrize("num_servers", [1, 3])
def test_an_optimizer_step_equals_that_of_one_process(num_servers):
    """Its hyperparameters count, also when they change; those of the servers do not."""
    tables = (
        LocalTable(C, D, num_shards=num_servers),
        rows_on_servers(num_servers, LazyAdam.fused(lr=7.0), fused=False),
    )
    results = []
    for table in tables:
        optimizer = LazyAdam(table, lr=0.1, betas=(0.8, 0.9), weight_decay=0.01)
        results.append(train(table, optimizer=optimizer))
    torch.testing.assert_close(results[0][:2], results[1][:2])
    local, served = {**results[0][2], **tables[0].gradients.state}, results[1][2]
    for name in ("weight", "bias", "weight_mean", "bias_square"):
        torch.testing.assert_close(local[name], served[name])
    assert int(local["step"]) == int(served["_extra_state"][1]) == 5


def test_an_optimizer_of_another_kind_than_the_servers_is_refused():
    table = rows_on_servers(2, LazyAdam.fused(), fused=False)
    with pytest.raises(UsageError) as error:
        RowwiseAdagrad(table)
    assert str(error.value) == (
        "the servers update 'rows' with LazyAdam, not with RowwiseAdagrad, and keep its state. Use "
        "the same optimizer on both."
    )
    assert table.gradients.optimizer is None


def test_a_state_dict_goes_from_servers_to_one_process_and_to_other_servers():
    """Three servers, one process, two servers: rows are ordered by id in all of them."""
    many = rows_on_servers(3, ADAM)
    train(many)
    one = LocalTable(C, D, row_optimizer=ADAM, num_shards=3)
    one.load_state_dict(many.state_dict())
    fewer = rows_on_servers(2, ADAM)
    fewer.load_state_dict(one.state_dict())
    ids = torch.arange(C)
    for table in (one, fewer):
        assert all(map(torch.equal, table.rows(ids), many.rows(ids)))
    states = [table.state_dict() for table in (many, one, fewer)]
    assert int(states[0]["_extra_state"][1]) == 5
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(state[name], states[0][name]) for name in state)


def test_the_numbers_of_shards_and_servers_must_agree():
    spec = TableSpec(C, D, 3, RowwiseAdagrad.fused())
    servers = [RowServer(j, {"rows": spec.shard(j)}) for j in range(2)]
    with pytest.raises(UsageError) as error:
        ServedTable(ServerChannel(InProcess("server", servers)), "rows", spec)
    assert str(error.value) == (
        "the rows of 'rows' are in 3 shards, but there are 2 servers. One shard goes to each "
        "server."
    )


def test_a_step_is_two_round_trips_with_any_number_of_targets():
    """One fetches the rows of kept classes and targets; the other pushes all gradients."""
    table = rows_on_servers(3, ADAGRAD)
    head = TapasSoftmax(table=table, num_samples=7, presample_factor=3)
    query = torch.randn(4, D, generator=stream(0, "q"), requires_grad=True)
    head(query, torch.randint(C, (4, 5), generator=stream(0, "t"))).backward()
    assert table.channel.traffic.round_trips == 2
