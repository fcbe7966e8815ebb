"""Peers of this process, and arrays that arrive read-only, as from another process."""

import numpy as np
import pytest
import torch
from contracts.tables import on_servers

from tapas import Priority, Top, UsageError
from tapas.candidates import Candidates
from tapas.optim import LazyAdam, RowUpdate
from tapas.rng import stream
from tapas.servers.channel import Gradients
from tapas.servers.messages import Scoring, to_array, to_tensor
from tapas.servers.peers import InProcess, call_all
from tapas.servers.row_server import RowServer
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import SecondPass
from tapas.tables.shard import TableSpec

B, C, D = 4, 31, 3


class Clerk:
    """Records its calls."""

    def __init__(self, number):
        self.number, self.asked = number, []

    def add(self, *values):
        self.asked.append(values)
        return self.number, sum(values)

    def fail(self):
        raise UsageError(f"clerk {self.number} cannot.")


def clerks():
    return InProcess("clerk", [Clerk(number) for number in range(3)])


def test_a_call_runs_once_and_its_answer_or_error_can_be_read_repeatedly():
    peers = clerks()
    call, failure = peers.call(1, "add", 2, 3), peers.call(2, "fail")
    assert peers.objects[1].asked == [(2, 3)]
    assert (call.number, call.done(), failure.done()) == (1, True, True)
    for _ in range(2):
        assert call.answer() == (1, 5)
        with pytest.raises(UsageError, match=r"^clerk 2 cannot\.$"):
            failure.answer()
    assert [len(clerk.asked) for clerk in peers.objects] == [0, 1, 0]
    for number in (-1, 3):
        words = rf"^there is no clerk {number}\. Numbers are 0 to 2\.$"
        with pytest.raises(UsageError, match=words):
            peers.call(number, "add", 1)


def test_call_all_returns_the_answers_of_all_peers():
    peers, value = clerks(), np.arange(3)
    assert call_all(peers, "add", (1, 1)) == [(0, 2), (1, 2), (2, 2)]
    with pytest.raises(UsageError, match=r"^clerk 0 cannot\.$"):
        call_all(peers, "fail")
    assert int(peers.call(0, "add", peers.share(value)).answer()[1].sum()) == 3
    peers.close()
    peers.close()


def test_any_done_returns_finished_calls():
    peers = clerks()
    calls = [peers.call(number, "add", 1) for number in range(3)]
    while calls:
        found = peers.any_done(calls, 0.0)
        assert found
        assert all(call.done() for call in found)
        calls = [call for call in calls if call not in found]
    assert peers.any_done([], 0.0) == []


def frozen(value):
    """`value` with all its arrays read-only, as they arrive from shared memory."""
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    elif isinstance(value, dict):
        value = {key: frozen(part) for key, part in value.items()}
    elif isinstance(value, tuple):
        parts = (frozen(part) for part in value)
        value = type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def arrays(value):
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        return [array for part in value.values() for array in arrays(part)]
    if isinstance(value, tuple):
        return [array for part in value for array in arrays(part)]
    assert isinstance(value, str | int | float | bool | None | Top | Priority | RowUpdate), value
    return []


class Memory(InProcess):
    """Peers whose arguments and answers are read-only."""

    methods = frozenset()

    def call(self, number, method, *args):
        assert all(array.flags.c_contiguous for array in arrays(args))
        call = super().call(number, method, *frozen(args))
        call._value = frozen(call._value)
        self.methods |= {method}
        return call


def a_table(peers_type, **spec):
    return on_servers(TableSpec(C, D, 3, LazyAdam.fused(lr=0.1), seed=2, **spec), peers=peers_type)


def use(table, rule):
    """Call every method; returns the last answer of each."""
    query = torch.randn(B, D, generator=stream(0, "query"), requires_grad=True)
    target = torch.tensor([[0, 30], [5, -1], [5, 7], [12, 0]])
    pool = torch.arange(0, C, 2)
    for keep in (7, C):
        batch, drawn = GlobalBatch.local(query, target), Candidates(pool, torch.zeros(len(pool)))
        how = SecondPass.draw(batch, drawn, keep, rule, 0.7, generator=stream(0, "keep"))
        own, log_sum = table.sampled_logits(batch, drawn, how)
        (own[:, 0].sum() + log_sum.sum()).backward()
    exclude = torch.tensor([[1, 2], [-1, 30], [3, -1], [0, 0]])
    state = table.state_dict()
    table.load_state_dict(state)
    found = table.rows(torch.tensor([3, 3, 30]))
    return [
        *found,
        *table.topk(query, 4, exclude=exclude),
        *table.topk(query, C),
        table.log_partition(query),
        *state.values(),
        own.detach(),
        query.grad,
    ]


@pytest.mark.parametrize("rule", [Top(), Priority()], ids=repr)
@pytest.mark.parametrize("has_bias", [True, False])
def test_read_only_arrays_give_the_same_results(rule, has_bias):
    """torch warns of tensors that share read-only memory, and warnings are errors in tests."""
    memory = a_table(Memory, has_bias=has_bias)
    got, want = use(memory, rule), use(a_table(InProcess, has_bias=has_bias), rule)
    assert all(map(torch.equal, got, want))
    methods = {"score", "rows", "push", "topk", "log_partition", "state", "num_updates", "load"}
    assert memory.channel.servers.methods == methods


def test_answers_are_contiguous_copies_that_later_pushes_leave_alone():
    """They are serialized only after the next request may have changed the rows."""
    spec = TableSpec(C, D, 1, LazyAdam.fused(lr=0.1))
    server, ids = RowServer(0, {"rows": spec.shard(0)}), np.arange(C)
    query, zeros = np.ones((B, D), np.float32), np.zeros(C, np.float32)
    how, pool = Scoring(Top(), 1.0, True), (ids, zeros, zeros[:0])
    ask = ("rows", query, ids[:B, None])
    answers = {
        "rows": server.rows("rows", ids),
        "score": server.score(*ask, how, *pool, 5, ids[:2]),
        "score of nothing": server.score(*ask, None, *pool, C, ids[:2]),
        "topk": server.topk("rows", query, 4, None),
        "log_partition": server.log_partition("rows", query),
        "state": server.state("rows"),
    }
    found = {method: arrays(answer) for method, answer in answers.items()}
    before = {method: [array.copy() for array in parts] for method, parts in found.items()}
    grad = np.ones((C, D), np.float32)
    assert server.push(0, 0, 0, 0, {"rows": Gradients(ids, grad, grad[:, 0])}).fresh
    for method, parts in found.items():
        assert all(array.flags.c_contiguous for array in parts), method
        assert all(map(np.array_equal, parts, before[method])), method


def test_to_tensor_copies_and_to_array_of_a_view_contains_only_the_view():
    array = np.arange(6, dtype=np.float32)
    tensor = to_tensor(frozen(array))
    assert tensor.dtype == torch.float32
    tensor.add_(1)
    assert array.tolist() == [0, 1, 2, 3, 4, 5]
    whole = torch.arange(12, dtype=torch.int64).view(3, 4)
    column = to_array(whole[:, 1])
    assert column.flags.c_contiguous
    assert (column.nbytes, column.dtype) == (3 * 8, np.int64)
    assert to_array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
