"""A row server against plain numpy: repeated pushes, versions, staleness, collisions, threads."""

import re
import threading
import time
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tapas import Top, UsageError, native
from tapas.optim import SGD, RowwiseAdagrad
from tapas.optim.row_store import RowGradients
from tapas.servers.channel import Gradients
from tapas.servers.messages import PushResult, Scoring
from tapas.servers.row_server import RowServer
from tapas.tables.shard import Shard, TableSpec

C, D, NUMBER = 31, 3, 1
LR = 0.5  # gradients are integers, so sums are exact in any order
ROWS = TableSpec(C, D, 3, SGD.fused(lr=LR))
INPUTS = TableSpec(C, 2, 3, SGD.fused(lr=LR), seed=5, has_bias=False)
SPECS = {"rows": ROWS, "inputs": INPUTS}
IDS = {name: spec.layout().ids_of(NUMBER).numpy() for name, spec in SPECS.items()}
BILLION = 1_000_000_000


def make_server(*, applied_below=0, specs=SPECS):
    """Server 1 of 3, with rows of zeros."""
    shards = {name: spec.shard(NUMBER) for name, spec in specs.items()}
    for shard in shards.values():
        shard.weight.zero_()
    return RowServer(NUMBER, shards, applied_below=applied_below)


def gradients(key, size=3):
    """Integer gradients of a few distinct classes of each table."""
    draw = np.random.default_rng(key)
    found = {}
    for name, spec in SPECS.items():
        ids = draw.permutation(IDS[name])[: draw.integers(size + 1)]
        shape = (len(ids), spec.dim)
        bias = draw.integers(-9, 9, len(ids) if spec.has_bias else 0)
        weight = draw.integers(-9, 9, shape).astype(np.float32)
        found[name] = Gradients(ids, weight, bias.astype(np.float32))
    return found


def every_row(server):
    return {name: server.rows(name, ids)[:2] for name, ids in IDS.items()}


class ReferenceServer:
    """`RowServer.push` written the slow way: a list of applied pushes, searched every time."""

    def __init__(self, applied_below=0, rows=None):
        self.applied_below, self.history = applied_below, []  # (sequence, {table: ids})
        zeros = {n: (np.zeros((len(IDS[n]), SPECS[n].dim)), np.zeros(len(IDS[n]))) for n in IDS}
        self.rows = {name: (w.copy(), b.copy()) for name, (w, b) in (rows or zeros).items()}

    def has(self, sequence):
        return sequence < self.applied_below or any(sequence == done for done, _ in self.history)

    def push(self, sequence, seen, grads):
        """Staleness, rows pushed, and how many of them were moved after the first `seen` pushes."""
        staleness, later = max(0, len(self.history) - seen), self.history[seen:]
        rows = collided = 0
        for name, (ids, weight, bias, _) in grads.items():
            for place, class_id in enumerate(ids):
                at = list(IDS[name]).index(class_id)
                self.rows[name][0][at] -= LR * weight[place]
                if len(bias):
                    self.rows[name][1][at] -= LR * bias[place]
                rows += 1
                collided += any(class_id in moved[name] for _, moved in later)
        self.history.append((sequence, {name: set(part[0]) for name, part in grads.items()}))
        return staleness, rows, collided

    def check(self, server):
        for name, (weight, bias) in every_row(server).items():
            assert np.array_equal(weight, self.rows[name][0])
            assert np.array_equal(bias, self.rows[name][1])


class Job:
    """Three workers whose pushes are lost, late or repeated, and a server that dies."""

    def __init__(self):
        self.server, self.reference = make_server(), ReferenceServer()
        self.messages, self.unacknowledged, self.results = [], set(), {}
        self.saved, self.lost = (0, ReferenceServer().rows, {}), set()
        self.counts, self.staleness = Counter(), Counter()

    @property
    def acknowledged_below(self):
        return min(self.unacknowledged, default=len(self.messages))

    def make(self, number):
        """Create the next push, unless the oldest unacknowledged one is too far behind."""
        sequence = len(self.messages)
        if sequence - self.acknowledged_below < 5:
            seen = max(0, self.server.num_pushes - number % 4)
            grads = gradients((sequence, number))
            self.messages.append((sequence % 3, sequence, self.acknowledged_below, seen, grads))
            self.unacknowledged.add(sequence)

    def deliver(self, sequence):
        message, is_fresh = self.messages[sequence], not self.reference.has(sequence)
        result = self.server.push(*message)
        assert result.fresh == is_fresh
        if is_fresh:
            found = self.reference.push(sequence, *message[3:])
            version = (self.server.incarnation, len(self.reference.history))
            assert result == PushResult(True, *found, version)
            self.results[sequence] = result
            self.staleness[found[0]] += 1
            self.counts.update(rows=found[1], collided=found[2])
        elif sequence >= max(self.acknowledged_below, self.saved[0]):
            assert result == self.results[sequence]._replace(fresh=False)
        self.counts["repeated"] += not is_fresh
        assert self.server.num_pushes == len(self.reference.history)

    def late(self, number, *, is_acknowledged):
        for sequence in sorted(self.unacknowledged)[number % 5 :][:1]:
            self.deliver(sequence)
            self.unacknowledged -= {sequence} if is_acknowledged else set()

    def again(self, number):
        """An acknowledged push arrives once more."""
        done = sorted(set(range(len(self.messages))) - self.unacknowledged - self.lost)
        if done:
            self.deliver(done[number % len(done)])

    def save(self, number):
        if not self.unacknowledged:  # no step is in flight during a checkpoint
            state = {name: self.server.state(name) for name in SPECS}
            state = {n: ({k: v.copy() for k, v in t.items()}, u) for n, (t, u) in state.items()}
            rows = ReferenceServer(rows=self.reference.rows).rows
            self.saved, self.lost = (len(self.messages), rows, state), set()

    def kill(self, number):
        saved_step, rows, state = self.saved
        self.server, self.reference = (
            make_server(applied_below=saved_step),
            ReferenceServer(saved_step, rows),
        )
        for name, (tensors, num_updates) in state.items():
            self.server.load(name, tensors, num_updates)
        self.lost |= set(range(saved_step, len(self.messages))) - self.unacknowledged
        self.counts, self.staleness = Counter(), Counter()
        assert self.server.status()["restored"] == saved_step

    def run(self, events):
        acts = {
            "make": self.make,
            "answered": lambda number: self.late(number, is_acknowledged=True),
            "answer lost": lambda number: self.late(number, is_acknowledged=False),
            "again": self.again,
            "save": self.save,
            "kill": self.kill,
        }
        for act, number in events:
            acts[act](number)
        while self.unacknowledged:
            self.late(0, is_acknowledged=True)
        self.reference.check(self.server)
        status = self.server.status()
        assert status["staleness"] == self.staleness
        for name in ("rows", "collided", "repeated"):
            assert status[name] == self.counts[name]


NORMAL = ["make", "make", "answered", "answered", "answer lost", "again"]


def events(acts):
    one = st.tuples(st.sampled_from(acts), st.integers(0, 999))
    return st.lists(one, min_size=5, max_size=40)


@settings(max_examples=40)
@given(events(NORMAL))
def test_every_push_is_applied_once_whatever_is_lost_repeated_or_late(acts):
    job, total = Job(), ReferenceServer()
    job.run(acts)
    for _, sequence, _, seen, grads in job.messages:
        total.push(sequence, seen, grads)
    total.check(job.server)  # all pushes, in another order
    assert job.server.num_pushes == len(job.messages)


@settings(max_examples=40)
@given(events([*NORMAL, "answered", "save", "save", "kill"]))
def test_a_restarted_server_has_the_saved_pushes_and_applies_the_unacknowledged_ones(acts):
    """Pushes acknowledged after the checkpoint are lost: workers do not send them again."""
    Job().run(acts)


def test_after_a_restart_pushes_computed_from_the_old_process_count_as_not_stale():
    server = make_server(applied_below=4)
    assert [server.push(k % 2, k, 0, k, gradients(k)).fresh for k in (3, 4, 5)] == [
        False,
        True,
        True,
    ]
    assert server.status()["staleness"] == {0: 2}
    assert server.num_pushes == 2
    assert server.incarnation != make_server(applied_below=4).incarnation


def test_acknowledged_pushes_are_forgotten():
    """Otherwise the results of a long run would fill the memory."""
    server, ones = make_server(), np.ones((len(IDS["rows"]), D), np.float32)
    grads = {"rows": Gradients(IDS["rows"], ones, ones[:, 0])}
    first = [server.push(0, k, max(0, k - 3), k, grads) for k in range(9)]
    assert {result.rows for result in first} == {len(IDS["rows"])}
    again = [server.push(0, k, 0, 0, grads) for k in range(9)]
    assert again[5:] == [result._replace(fresh=False) for result in first[5:]]
    assert [result[:4] for result in again[:5]] == [(False, 0, 0, 0)] * 5


FOREIGN, ONES = ROWS.layout().ids_of(2).numpy()[:1], np.ones((2, D), np.float32)
NO_TABLE = "server 1 has no table '{}'. It has: inputs, rows."
REFUSED = {  # arguments of a method, and the error
    "rows": [
        (("row", IDS["rows"]), NO_TABLE.format("row")),
        # with another placement, workers would read and write memory outside the shard
        (("rows", FOREIGN), f"class {FOREIGN[0]} of 'rows' is not on server 1"),
    ],
    "score": [
        (
            ("row", ONES, IDS["rows"][:2, None], None, IDS["rows"], ONES[0], ONES[0], 1, FOREIGN),
            NO_TABLE.format("row"),
        ),
    ],
    "topk": [(("row", ONES, 1, None), NO_TABLE.format("row"))],
    "log_partition": [(("row", ONES), NO_TABLE.format("row"))],
    "state": [(("row",), NO_TABLE.format("row"))],
    "num_updates": [(("row",), NO_TABLE.format("row"))],
    "push": [
        ({"items": Gradients(FOREIGN, ONES[:1], ONES[0, :1])}, NO_TABLE.format("items")),
        (
            {"rows": Gradients(FOREIGN, ONES[:1], ONES[0, :1])},
            f"class {FOREIGN[0]} of 'rows' is not on server 1",
        ),
        (
            {"inputs": gradients(1)["inputs"]._replace(update=RowwiseAdagrad.fused())},
            "server 1 updates 'inputs' with SGD, got a push for RowwiseAdagrad. Use the same "
            "optimizer on workers and servers. Nothing was changed.",
        ),
    ],
}


@pytest.mark.parametrize("method", REFUSED)
def test_a_refused_request_changes_nothing(method):
    """Valid parts of a refused push are not applied either; afterwards the lock is free."""
    server, good = make_server(), gradients(1)
    for args, words in REFUSED[method]:
        call = (0, 0, 0, 0, good | args) if method == "push" else args
        with native.switched_off(), pytest.raises(UsageError, match=re.escape(words)):
            getattr(server, method)(*call)
    ReferenceServer().check(server)
    assert server.num_pushes == 0
    assert server.push(0, 0, 0, 0, good).fresh
    assert server.status()["staleness"] == {0: 1}


def test_threads_never_see_a_push_half_applied(monkeypatch):
    """Each push moves all rows by the same amount, so every row read is a multiple of it."""
    server, ids = make_server(), IDS["rows"]
    shard, ones = server.shards["rows"], np.ones((len(ids), D), np.float32)

    def move_slowly(update, gradients, state):
        for place in torch.randperm(len(gradients.ids), generator=torch.Generator()).split(4):
            Shard.move_rows(shard, update, RowGradients(*(x[place] for x in gradients)), state)
            time.sleep(1e-4)  # lets other threads run

    monkeypatch.setattr(shard, "move_rows", move_slowly)
    torn, reads = [], Counter()

    def push(worker):
        for k in range(20):
            for _ in range(2):
                server.push(worker, k, 0, 0, {"rows": Gradients(ids, ones, ones[:, 0])})

    def read(_):
        while server.num_pushes < 40:
            weight, bias, version = server.rows("rows", ids)
            torn.append(not (weight == -LR * version.num_pushes).all())
            torn.append(not (bias == -LR * version.num_pushes).all())
            reads[version.num_pushes] += 1

    jobs = [(push, 0), (push, 1), (read, 0), (read, 1)]
    threads = [threading.Thread(target=work, args=(number,)) for work, number in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(torn)
    assert len(reads) > 1  # some reads fell between the first push and the last
    assert server.num_pushes == 40
    assert (server.rows("rows", ids)[0] == -LR * 40).all()


def test_status_counts_queues_and_busy_seconds_and_needs_no_lock(monkeypatch):
    server, ids = make_server(), IDS["rows"]
    inside, go_on = threading.Event(), threading.Event()

    def log_partition(*args):
        inside.set()
        assert go_on.wait(20)
        return torch.zeros(1)

    monkeypatch.setattr("tapas.servers.row_server.log_sum_rows", log_partition)
    args = ("rows", np.ones((1, D), np.float32))
    threads = [threading.Thread(target=server.log_partition, args=args)]
    threads[0].start()
    assert inside.wait(20)
    started = time.perf_counter()
    for before in (1, 2, 3):
        threads.append(threading.Thread(target=server.rows, args=("rows", ids)))
        threads[-1].start()
        while server.status()["queue"].get(before) != 1:
            time.sleep(1e-4)
    assert server.status()["requests"] == {}
    time.sleep(0.05)
    go_on.set()
    held = time.perf_counter() - started
    for thread in threads:
        thread.join(timeout=20)
    server.rows("rows", ids)
    status = server.status()
    assert status["queue"] == {0: 2, 1: 1, 2: 1, 3: 1}
    assert status["requests"] == {"log_partition": 1, "rows": 4}
    assert status["busy_seconds"]["log_partition"] >= held
    assert status["busy_seconds"]["rows"] < held  # waiting for the lock does not count


@pytest.mark.parametrize("placement", ["contiguous", "random"])
def test_the_last_of_a_billion_classes(placement, monkeypatch):
    """Such ids are not distinct in float32. Each of the many servers has ten rows."""
    monkeypatch.setattr(Shard, "init_rows", lambda self, weight: weight.zero_())
    spec = TableSpec(BILLION, D, BILLION // 10, SGD.fused(lr=LR), placement=placement)
    number = BILLION // 10 - 1
    server, ids = RowServer(number, {"rows": spec.shard(number)}), spec.layout().ids_of(number)
    assert placement == "random" or ids.tolist() == list(range(BILLION - 10, BILLION))
    ids = ids.sort().values.numpy()
    ones = np.ones((2, D), np.float32)
    grads = {"rows": Gradients(ids[[9, 4]], -ones, -ones[:, 0])}
    assert server.push(0, 0, 0, 0, grads).rows == 2
    weight, bias, _ = server.rows("rows", ids)
    assert weight[:, 0].tolist() == bias.tolist() == [0.5 * (i in (4, 9)) for i in range(10)]
    assert server.topk("rows", ones, 3, None)[1][1].tolist() == ids[[4, 9, 0]].tolist()
    excluded = np.array([[-1, 3], [ids[4], 7]])
    assert server.topk("rows", ones, 1, excluded)[1][:, 0].tolist() == ids[[4, 9]].tolist()
    zeros = np.zeros(10, np.float32)
    how = Scoring(Top(), 1.0, True)
    ask = ("rows", ones, excluded, how, ids, zeros, zeros[:0], 2, ids[:1])
    assert server.score(*ask).ids.tolist() == ids[[4, 9]].tolist()
