"""Workers and servers against one process with as many virtual shards: the same, to rounding."""

import pytest
import torch
from contracts.tables import served

from tapas import (
    LazyAdam,
    LocalTable,
    Priority,
    RowwiseAdagrad,
    TapasSoftmax,
    Top,
    UsageError,
    stream,
)
from tapas.tables.peers import InProcess
from tapas.tables.post import Post
from tapas.tables.served import ServedTable
from tapas.tables.server import RowServer
from tapas.tables.shard import TableSpec

B, C, D = 6, 53, 5


def rows_on_servers(num_servers, optimizer, bias=None, seed=0, **spec):
    spec = TableSpec(C, D, num_servers, optimizer, seed=seed, **spec)
    parts = [None if bias is None else bias[spec.layout().ids_of(j)] for j in range(num_servers)]
    servers = [RowServer(j, {"rows": spec.shard(j, parts[j])}) for j in range(num_servers)]
    return ServedTable(Post(InProcess("server", servers)), "rows", spec)


def train(table, *, rule, presample, steps=5, correction="proposal"):
    head = TapasSoftmax(
        table=table,
        num_samples=11,
        presample_factor=presample,
        selection=rule,
        temperature=0.8,
        correction=correction,
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
    state = dict(table.state_dict())
    return torch.stack(losses), torch.stack(grads), state, state.pop("_extra_state")


@pytest.mark.parametrize("num_servers", [1, 2, 5])
@pytest.mark.parametrize("presample", [1, 3, 8])
@pytest.mark.parametrize("rule", [Top(), Priority(), Priority(score_queries=2)], ids=repr)
@pytest.mark.parametrize("optimizer", [RowwiseAdagrad(lr=0.3), LazyAdam(lr=0.1)], ids=repr)
def test_a_step_is_that_of_one_process_with_as_many_shards(num_servers, presample, rule, optimizer):
    bias = torch.randn(C, generator=stream(0, "bias"))
    one = LocalTable(C, D, row_optimizer=optimizer, num_shards=num_servers, bias=bias, seed=3)
    many = rows_on_servers(num_servers, optimizer, bias, seed=3)
    want = train(one, rule=rule, presample=presample)
    got = train(many, rule=rule, presample=presample)
    torch.testing.assert_close(got[:3], want[:3])
    assert got[3] == want[3]


def test_a_table_without_biases_and_a_head_without_correction():
    one = LocalTable(C, D, row_optimizer=LazyAdam(lr=0.1), num_shards=3, bias=False)
    many = rows_on_servers(3, LazyAdam(lr=0.1), has_bias=False)
    want = train(one, rule=Top(), presample=3, correction="none")
    got = train(many, rule=Top(), presample=3, correction="none")
    torch.testing.assert_close(got[:3], want[:3])


def test_a_state_goes_from_servers_to_one_process_and_back_to_other_servers():
    """Three servers, one process, two servers: rows by id, whoever has them."""
    many = rows_on_servers(3, LazyAdam(lr=0.1))
    train(many, rule=Top(), presample=3)
    one = LocalTable(C, D, row_optimizer=LazyAdam(lr=0.1), num_shards=3)
    one.load_state_dict(many.state_dict())
    fewer = rows_on_servers(2, LazyAdam(lr=0.1))
    fewer.load_state_dict(one.state_dict())
    ids = torch.arange(C)
    for table in (one, fewer):
        assert all(map(torch.equal, table.rows(ids), many.rows(ids)))
    assert fewer.get_extra_state() == many.get_extra_state() | {"num_shards": 2}


def test_shards_and_servers_must_be_as_many():
    spec = TableSpec(C, D, 3, RowwiseAdagrad())
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
        table = build(RowwiseAdagrad())
        head = TapasSoftmax(table=table, num_samples=7, presample_factor=3)
        query = torch.randn(4, table.dim, generator=stream(0, "q"), requires_grad=True)
        before = table.post.traffic.round_trips
        head(query, torch.randint(31, (4, 5), generator=stream(0, "t"))).backward()
        assert table.post.traffic.round_trips - before == 2
