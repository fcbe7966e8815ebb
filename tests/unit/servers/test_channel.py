"""A worker's channel to the servers: pushes are applied once, in flight or not; bytes counted."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tapas import LocalTable, Priority, Top, UsageError
from tapas.candidates import Candidates
from tapas.optim import SGD
from tapas.rng import stream
from tapas.servers.channel import Gradients, ServerChannel, num_bytes
from tapas.servers.messages import Version
from tapas.servers.peers import InProcess
from tapas.servers.row_server import RowServer
from tapas.servers.served_table import ServedTable
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import SecondPass
from tapas.tables.shard import TableSpec
from tapas.training.memory_plan import Workload, traffic_designs

C, D, M = 31, 5, 3
LR = 0.5  # gradients are integers, so sums are exact in any order
SPEC = TableSpec(C, D, M, SGD.fused(lr=LR), seed=4)
PLACES = [SPEC.layout().ids_of(j).numpy() for j in range(M)]
BILLION = 1_000_000_000


class Held:
    """A push that is in flight until its answer is wanted."""

    def __init__(self, peers, number, args):
        self.number, self.args = number, args
        self._make = lambda: InProcess.call(peers, number, "push", *args).answer()
        self._receipt = None

    def done(self):
        return self._receipt is not None

    def answer(self):
        if self._receipt is None:
            self._receipt = self._make()
        return self._receipt


class Slow(InProcess):
    """Peers that apply a push only when its answer is wanted."""

    def __init__(self, *args):
        super().__init__(*args)
        self.pushes = []

    def call(self, number, method, *args):
        if method != "push":
            return super().call(number, method, *args)
        self.pushes.append(Held(self, number, args))
        return self.pushes[-1]


class Sealed(InProcess):
    """Peers whose `share` returns a reference, as Ray's does."""

    def share(self, value):
        return lambda: value

    def call(self, number, method, *args):
        return super().call(number, method, *(arg() if callable(arg) else arg for arg in args))


def servers(kind=InProcess, names=("rows", "inputs")):
    return kind("server", [RowServer(j, {n: SPEC.shard(j) for n in names}) for j in range(M)])


def versions(peers):
    return [server.num_pushes for server in peers.objects]


def ones(counts=(1, 2, 0)):
    """Gradients of the first few classes of each server."""
    return [
        Gradients(PLACES[j][:n], np.ones((n, D), np.float32), np.ones(n, np.float32))
        for j, n in enumerate(counts)
    ]


def push(channel, sequence, parts):
    """Push as one of many workers, without acknowledging earlier pushes."""
    with channel.single_push(sequence, acknowledged_below=0):
        channel.push("rows", parts)
    return [(result.staleness, result.collided) for result in channel.push_results]


def every_row(peers):
    found = [server.rows("rows", ids) for server, ids in zip(peers.objects, PLACES, strict=True)]
    return np.concatenate([weight for weight, _, _ in found])


def test_everything_pushed_in_a_block_is_one_push_with_one_number():
    channel = ServerChannel(servers(Slow), worker=7)
    with channel.single_push(5):
        channel.push("rows", ones())
        channel.push("inputs", ones((0, 0, 3)))
    assert [push.args[:3] for push in channel.servers.pushes] == [(7, 5, 5)] * M
    assert [list(push.args[4]) for push in channel.servers.pushes] == [["rows", "inputs"]] * M
    assert [result.rows for result in channel.push_results] == [1, 2, 3]
    assert versions(channel.servers) == [1, 1, 1]  # also where nothing moved
    assert (channel.sequence, channel.traffic.round_trips) == (6, 1)
    channel.push("rows", ones())
    assert channel.sequence == 7


def test_a_push_block_that_fails_sends_nothing():
    channel = ServerChannel(servers())
    with pytest.raises(ValueError, match="is shorter"), channel.single_push(0):
        [channel.push(name, ones()[:n]) for name, n in (("rows", M), ("inputs", M - 1))]
    words = r"^acknowledged_below must be at most 3, the sequence of this push, got 4\.$"
    # servers would take it for a repeated push and drop it
    with pytest.raises(UsageError, match=words), channel.single_push(3, acknowledged_below=4):
        channel.push("rows", ones())
    assert versions(channel.servers) == [0, 0, 0]
    assert (channel.sequence, channel.traffic.round_trips) == (0, 0)
    channel.push("rows", ones())
    assert versions(channel.servers) == [1, 1, 1]


def test_nested_blocks_and_a_table_twice_in_a_push_are_refused():
    channel = ServerChannel(servers())
    inner = r"^single_push blocks cannot be nested; leave the outer one first\.$"
    twice = r"^table 'rows' occurs twice in one push\. Sum its gradients with"
    with channel.single_push(0):
        channel.push("rows", ones())
        with pytest.raises(UsageError, match=inner), channel.single_push(1):
            pass
        with pytest.raises(UsageError, match=twice):
            channel.push("rows", ones())
    assert [result.rows for result in channel.push_results] == [1, 2, 0]  # the outer one, once
    assert versions(channel.servers) == [1, 1, 1]


def test_a_repeated_push_is_not_applied_again_and_sequences_continue():
    channel = ServerChannel(servers())
    for sequence in (0, 1, 2, 1):
        with channel.single_push(sequence, acknowledged_below=0):
            channel.push("rows", ones())
    assert [result.fresh for result in channel.push_results] == [False] * M
    channel.push("rows", ones())
    assert [result.fresh for result in channel.push_results] == [True] * M
    assert versions(channel.servers) == [4, 4, 4]


@settings(max_examples=25)
@given(st.lists(st.integers(0, 2), max_size=12), st.integers(0, 2))
def test_workers_with_their_own_sequences_lose_no_push(turns, max_unacknowledged):
    """Push 0 of one worker may arrive after push 5 of another."""
    peers = servers(names=["rows"])
    channels = [
        ServerChannel(peers, worker, max_unacknowledged=max_unacknowledged) for worker in range(3)
    ]
    before = every_row(peers)
    for worker in turns:
        channels[worker].push("rows", ones((1, 1, 1)))
    for channel in channels:
        channel.flush()
    assert versions(peers) == [len(turns)] * M
    moved = before - every_row(peers)
    np.testing.assert_allclose(moved[0], LR * len(turns), rtol=0, atol=1e-5)  # rounding of rows


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("max_unacknowledged", [0, 1, 2])
def test_a_push_in_flight_is_not_acknowledged(stride, max_unacknowledged):
    """Pushes arrive late and in any order: none is dropped."""
    channel = ServerChannel(servers(Slow), max_unacknowledged=max_unacknowledged)
    steps = [stride * k for k in range(5)]
    for k, step in enumerate(steps):
        with channel.single_push(step):
            channel.push("rows", ones())
        oldest = steps[max(0, k - max_unacknowledged)]
        assert {push.args[2] for push in channel.servers.pushes[-M:]} <= set(range(oldest + 1))
    for push in reversed(channel.servers.pushes):
        push.answer()
    channel.flush()
    assert versions(channel.servers) == [5, 5, 5]


def test_reads_may_miss_a_push_in_flight_and_flush_waits_for_it():
    table = ServedTable(ServerChannel(servers(Slow), max_unacknowledged=2), "rows", SPEC)
    ids, grad = torch.arange(C), torch.ones(C, D)
    start = table.rows(ids)[0]
    for applied in (0, 0, 1, 2):  # all but the last two are acknowledged
        table.update(ids, grad, grad[:, 0])
        torch.testing.assert_close(table.rows(ids)[0], start - LR * applied)
    table.flush()
    torch.testing.assert_close(table.rows(ids)[0], start - LR * 4)
    table.flush()
    assert versions(table.channel.servers) == [4] * M


def test_the_error_of_a_push_is_raised_by_the_next_push_or_by_flush():
    """The results of the other servers are still waited for."""
    words = r"^server 0 has no table 'items'\. It has: inputs, rows\.$"
    channel = ServerChannel(servers(Slow), max_unacknowledged=1)
    bad = ones()
    for then in ("push", "flush"):
        with channel.single_push(channel.sequence):
            channel.push("rows", bad)
            channel._pending[0]["items"] = bad[0]
        with pytest.raises(UsageError, match=words):
            channel.push("rows", ones()) if then == "push" else channel.flush()
        channel.flush()
    assert versions(channel.servers)[1:] == [3, 3]


def test_staleness_and_collisions_are_counted_from_the_oldest_read():
    peers = servers()
    slow, fast = (ServedTable(ServerChannel(peers, worker), "rows", SPEC) for worker in (0, 1))
    every = torch.arange(C)
    slow.rows(every)
    for sequence in range(3):
        fast.rows(every)
        assert push(fast.channel, sequence, ones((1, 2, 0))) == [(0, 0)] * M
    slow.rows(every)  # staleness counts from the first read
    assert push(slow.channel, 3, ones((2, 1, 1))) == [(3, 1), (3, 1), (3, 0)]
    slow.rows(every)
    assert push(slow.channel, 4, ones((2, 1, 1))) == [(0, 0)] * M


def test_after_a_restart_staleness_counts_from_the_first_read_of_the_new_process():
    channel = ServerChannel(servers())
    table = ServedTable(channel, "rows", SPEC)
    for sequence in range(4):
        push(channel, sequence, ones())
    table.rows(torch.arange(C))
    channel.servers.objects[1] = RowServer(1, {"rows": SPEC.shard(1)}, applied_below=4)
    table.rows(torch.arange(C))
    push(ServerChannel(channel.servers, worker=1), 4, ones((2, 0, 0)))
    push(ServerChannel(channel.servers, worker=1), 5, ones((0, 1, 0)))
    assert push(channel, 6, ones((2, 2, 0))) == [(2, 2), (2, 1), (2, 0)]
    assert channel.push_results[1].version == Version(channel.servers.objects[1].incarnation, 3)


def test_a_push_without_reads_is_not_stale():
    """Also on a server from which the step read nothing."""
    table = ServedTable(ServerChannel(servers()), "rows", SPEC)
    for _ in range(3):
        table.channel.push("rows", ones())
    table.rows(torch.from_numpy(PLACES[0][:1]))
    table.channel.push("rows", ones((1, 0, 0)))
    assert [result.staleness for result in table.channel.push_results] == [0, 0, 0]


@pytest.mark.parametrize("peers", [InProcess, Sealed])
@pytest.mark.parametrize("rule", [Top(), Priority(score_queries=None)], ids=repr)
def test_a_step_sends_the_bytes_of_algorithm_2(rule, peers):
    """`traffic_designs` leaves out ids and noise, and counts a row for each target."""
    num_examples, num_targets, keep, factor = 6, 2, 7, 3
    draw = stream(0, "step")
    query = torch.randn(num_examples, D, generator=draw, requires_grad=True)
    target = torch.randint(9, (num_examples, num_targets), generator=draw)
    num_pool, num_own = keep * factor, len(target.unique())
    pool = torch.randperm(C, generator=draw)[:num_pool].sort().values
    batch, pool = GlobalBatch.local(query, target), Candidates(pool, torch.zeros(num_pool))
    how = SecondPass.draw(batch, pool, keep, rule, 1.0, generator=stream(0, "keep"))
    local = LocalTable(C, D, row_optimizer=SGD.fused(), num_shards=M, seed=4)
    kept = local.select(pool, how).ids
    touched = len(torch.cat([kept, target.reshape(-1)]).unique())

    table = ServedTable(ServerChannel(servers(peers)), "rows", SPEC)
    own, log_sum = table.sampled_logits(batch, pool, how)
    row, traffic = 4 * (D + 1), table.channel.traffic
    pooled = num_pool * (8 + 4 + 4 * rule.random)
    asked = M * num_examples * (4 * D + 8 * num_targets) + pooled + 8 * num_own
    answered = 12 * len(kept) + (len(kept) + num_own) * row
    assert (traffic.sent_bytes, traffic.received_bytes) == (asked, answered)
    (own.sum() + log_sum.sum()).backward()
    pushed = touched * (8 + row)
    assert (traffic.sent_bytes, traffic.received_bytes) == (asked + pushed, answered)
    assert traffic.round_trips == 2

    workload = Workload(
        num_classes=C,
        dim=D,
        num_samples=keep,
        presample_factor=factor,
        batch=num_examples,
        targets=num_targets,
        ranks=M,
    )
    planned = traffic_designs(workload)["algorithm 2"]
    uncounted = M * num_examples * 8 * num_targets + pooled
    uncounted += 8 * num_own + 12 * len(kept) + 8 * touched
    shared = 2 * (keep + num_examples * num_targets) - (len(kept) + num_own) - touched
    assert shared > 0
    assert asked + answered + pushed == planned + uncounted - shared * row


def test_every_push_carries_the_current_hyperparameters_and_they_are_not_counted_as_bytes():
    """They may change between steps, for fused updates and for optimizers."""
    channels = [ServerChannel(servers(Slow)) for _ in range(2)]
    spec = SPEC._replace(row_optimizer=SGD.fused(lr=LR))  # whose number is changed below
    fused, given = (
        ServedTable(channel, "rows", spec, fused=is_fused)
        for channel, is_fused in zip(channels, (True, False), strict=True)
    )
    optimizer = SGD(given, lr=LR)
    for lr in (LR, 2 * LR):
        optimizer.param_groups[0]["lr"] = fused.row_optimizer.lr = lr
        for table in (fused, given):
            table.update(torch.arange(4), torch.ones(4, D), torch.ones(4))
    sent = [
        [push.args[4]["rows"].update for push in channel.servers.pushes] for channel in channels
    ]
    assert sent[0] == sent[1] == [SGD.fused(lr=LR)] * M + [SGD.fused(lr=2 * LR)] * M
    assert channels[0].traffic == channels[1].traffic


def test_num_bytes_counts_arrays_at_any_depth():
    message = ("rows", 3, None, np.zeros((2, 3), np.float32), {"a": [np.zeros(5, np.int64)]})
    assert num_bytes(message) == 2 * 3 * 4 + 5 * 8


class Echo:
    """A server that answers with the requested ids."""

    def __init__(self):
        self.pushed = []

    def rows(self, table, ids):
        return (
            (ids % 1000).astype(np.float32)[:, None],
            np.zeros(len(ids), np.float32),
            Version("", 0),
        )

    def push(self, worker, sequence, acknowledged_below, seen, grads):
        self.pushed.append(grads["rows"])


@pytest.mark.parametrize("placement", ["contiguous", "random"])
def test_ids_of_a_billion_classes_reach_the_right_server_unchanged(placement):
    spec = TableSpec(BILLION, 1, 2, SGD.fused(), placement=placement)
    echoes = [Echo(), Echo()]
    table = ServedTable(ServerChannel(InProcess("server", echoes)), "rows", spec)
    ids = torch.tensor([BILLION - 1, BILLION - 2, 16_777_217, 16_777_216, BILLION - 1])
    assert table.rows(ids)[0][:, 0].tolist() == [999, 998, 217, 216, 999]
    table.update(ids, torch.ones(5, 1), torch.ones(5))
    sent = {}
    for number, echo in enumerate(echoes):
        ((found, grad, _, update),) = echo.pushed
        assert update == spec.row_optimizer
        assert spec.layout().shard(torch.from_numpy(found)).tolist() == [number] * len(found)
        sent |= dict(zip(found.tolist(), grad[:, 0].tolist(), strict=True))
    assert sent == {BILLION - 1: 2, BILLION - 2: 1, 16_777_217: 1, 16_777_216: 1}
