"""The benchmark of servers times the work of a step, and its echo is as large as an answer."""

import time

import numpy as np
import pytest
import torch

import tapas
from tapas.servers.channel import ServerChannel
from tapas.servers.peers import InProcess
from tapas.servers.served_table import ServedTable
from tapas.tables.ranks import GlobalBatch
from tapas.tables.shard import TableSpec

C, D, B, N, SERVERS = 997, 5, 23, 31, 3


class Remembered(InProcess):
    """Peers that keep the last answer to each verb."""

    def __init__(self, *args):
        super().__init__(*args)
        self.answers = {}

    def call(self, number, verb, *args):
        made = super().call(number, verb, *args)
        self.answers[verb, number] = made.answer()
        return made


@pytest.fixture(scope="module")
def bench(load):
    return load("bench_servers")


@pytest.fixture(scope="module")
def clocked(load):
    return load("clocked_servers")


@pytest.fixture
def alone(bench):
    return tapas.LocalTable(C, D, row_optimizer=bench.OPTIMIZER, num_shards=SERVERS)


@pytest.fixture
def servers(bench, clocked):
    spec = TableSpec(C, D, SERVERS, bench.OPTIMIZER)
    return Remembered("server", [clocked.make_server(spec, j) for j in range(SERVERS)])


@pytest.fixture(params=["top", "priority"])
def contenders(bench, servers, alone, request):
    batches = bench.make_batches(alone, bench.zipf_proposal(C), N, request.param, B)
    return bench.Contenders(servers, alone, batches)


def test_a_round_trip_has_the_messages_of_a_step(contenders, clocked, servers):
    table, batch = contenders.table, contenders.batches[0]
    found = clocked.round_trip(table, batch)
    step = ServedTable(ServerChannel(servers), "rows", table.spec)
    everyone = GlobalBatch.local(torch.zeros(B, D), batch.target)
    step.sampled_logits(everyone, batch.pool, batch.second_pass)
    assert table.channel.traffic == step.channel.traffic
    assert len(found.kept) == N
    ids = torch.cat([batch.target[:, 0], found.kept.ids])
    at = torch.cat([found.rows.target_at[:, 0], found.rows.kept_at])
    for got, want in zip(found.rows.read(at), contenders.alone.rows(ids), strict=True):
        assert torch.equal(got, want)


def test_an_echo_is_as_large_as_the_answer(contenders, servers):
    contenders.full_round_trip(0)
    contenders.echo(0)
    for number in range(SERVERS):
        scored, echoed = servers.answers["score", number], servers.answers["echo", number]
        assert scored.version == echoed.version
        for got, want in zip(echoed[:-1], scored[:-1], strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            assert got.flags.c_contiguous
        assert not np.array_equal(echoed.rows, scored.rows)
    assert contenders.echoing.channel.traffic == contenders.table.channel.traffic


def test_nothing_is_scored_for_an_echo(contenders, servers):
    contenders.echo(0)
    assert all("score" not in each.status()["requests"] for each in servers.objects)
    assert all(each.cpu_seconds == 0 for each in servers.objects)


def test_the_parts_of_a_round_trip_add_up_to_its_time(contenders, servers, monkeypatch):
    def slow(part, seconds):
        return lambda *_: (time.sleep(seconds), part(*_))[1]

    table = contenders.table
    for name, seconds in (("_split", 0.02), ("_kept", 0.05)):
        monkeypatch.setattr(table, name, slow(getattr(table, name), seconds))
    monkeypatch.setattr(servers, "share", slow(servers.share, 0.1))
    contenders.full_round_trip(0)  # its times must not count
    found = contenders.full_round_trip(0)
    assert found["splitting"] >= 0.04  # the pool and the targets
    assert found["joining"] >= 0.05
    assert found["sharing"] >= 0.2  # the queries and their targets
    parts = ("sharing", "sending", "waiting")
    assert found["between"] == pytest.approx(sum(found[part] for part in parts))
    parts = ("between", "splitting", "joining")
    assert found["whole"] == pytest.approx(sum(found[part] for part in parts))


def test_a_server_that_sleeps_is_busy_without_cpu_time(clocked, contenders, servers, monkeypatch):
    shard = servers.objects[1].shards["rows"]
    read = shard._read
    monkeypatch.setattr(shard, "_read", lambda ids: (time.sleep(0.2), read(ids))[1])
    before = contenders.full_round_trip(0)
    assert before["busy"] >= 0.2
    assert 0 < before["cpu"] < 0.2
    assert before["cpu"] <= before["cpu of all"] <= SERVERS * before["cpu"]


def test_every_push_arrives_and_changes_no_row(contenders, servers, bench):
    before = [server.shards["rows"].weight.clone() for server in servers.objects]
    for _ in range(2):
        contenders.push(0)
        assert all(result.fresh for result in contenders.table.channel.push_results)
    next_setting = bench.Contenders(servers, contenders.alone, contenders.batches)
    next_setting.push(1)
    assert all(result.fresh for result in next_setting.table.channel.push_results)
    touched = torch.unique(torch.cat([contenders.batches[1].target[:, 0], contenders.kept[1]]))
    assert sum(result.rows for result in next_setting.table.channel.push_results) == len(touched)
    assert next_setting.sent_bytes["to push"] == len(touched) * (8 + 4 * D + 4)
    for server, rows in zip(servers.objects, before, strict=True):
        assert torch.equal(server.shards["rows"].weight, rows)


def test_servers_with_other_rows_are_not_timed(contenders, servers):
    contenders.check()
    servers.objects[0].shards["rows"].weight.neg_()
    with pytest.raises(SystemExit, match="3 servers keep other classes than one process"):
        contenders.check()


def test_turns_of_the_warm_up_do_not_count(contenders):
    seconds = contenders.in_turns(2)
    assert len(contenders.turns["push"]) > 2
    for name, parts in seconds.items():
        assert all(len(values) == 2 for values in parts.values())
        last = [turn["whole"] for turn in contenders.turns[name][-2:]]
        assert parts["whole"] == last


def fake_seconds():
    trip = {"whole": 0.2, "between": 0.15, "splitting": 0.02, "joining": 0.03, "cpu": 0.04}
    return {
        "round trip": {part: [value] * 3 for part, value in trip.items()},
        "transport": {"whole": [0.07] * 3, "between": [0.01] * 3},
        "push": {"whole": [0.005] * 3},
        "one process": {"whole": [0.3] * 3},
    }


def test_the_target_and_the_page_have_the_shares_of_transport(bench, load):
    seconds = fake_seconds()
    target = bench.transport_target("made up", seconds)
    assert (target.reading, target.met) == (pytest.approx(5), True)
    assert target.found == "5.00 % [5.00, 5.00]"
    found = {
        "seconds": seconds,
        "own_cores_seconds": bench.own_cores(seconds),
        "sent_bytes": {"to score": 1_000_000, "answers": 2_000_000, "to push": 500_000},
        "planned_bytes": 4_000_000,
    }
    text = load("sections").servers({"results": {"settings": {"made up": found}}})
    heads, _, cells = (line.strip("| ").split(" | ") for line in text.splitlines()[-3:])
    shown = dict(zip(heads, cells, strict=True))
    assert shown["share"] == "5.0 % [5.0, 5.0]"
    assert shown["with a core each"] == "10.0 % [10.0, 10.0]"  # 10 of 10 + 20 + 30 + 40 ms
    assert shown["worker"].startswith("50.0 ms")
    assert shown["slowest server"].startswith("40.0 ms")
    assert shown["push"].startswith("5.00 ms")
    assert (shown["bytes of a step"], shown["planned"]) == ("3.50 MB", "4.00 MB")
    rows = (1000 + bench.B) * 4 * (bench.D + 1)  # traffic of Algorithm 2
    assert bench.planned_bytes(6, 1000) == 6 * bench.B * 4 * bench.D + 2 * rows
