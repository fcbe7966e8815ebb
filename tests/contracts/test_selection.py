"""The contract of `Selection`, tested for `Top`, `Priority` and a rule written by a user."""

import importlib

import pytest
import torch
from contracts.tables import select
from oracle.selection import noise as noise_of
from torch.utils._python_dispatch import TorchDispatchMode

from tapas import LocalTable, Priority, Selection, Top, UsageError
from tapas.candidates import Candidates
from tapas.rng import stream
from tapas.selection import SelectionInput, as_selection
from tapas.tables.ranks import GlobalBatch

top_rule = importlib.import_module("tapas.selection.top")
priority_rule = importlib.import_module("tapas.selection.priority")
kernels_module = importlib.import_module("tapas.native.kernels")

pytestmark = pytest.mark.usefixtures("kernels")
A, C, D, P, KEEP = 5, 31, 3, 17, 7


class Closest(Selection):
    """A user's rule: the classes closest to any query, each with a weight above 1."""

    score_queries = None

    def select(self, given, keep):
        best = torch.empty(len(given))
        for start in range(0, len(given), 2):
            stop = min(start + 2, len(given))
            weight, bias = given.rows(start, stop)
            best[start:stop] = torch.addmm(bias, given.query, weight.t()).amax(dim=0)
        kept = best.sort(descending=True, stable=True).indices[:keep].sort().values
        return kept, torch.full((keep,), 0.25)


RULES = {"top": Top(), "priority": Priority(), "user": Closest()}


@pytest.fixture(params=RULES)
def rule(request):
    return RULES[request.param]


def draw(*shape, name="draw"):
    return torch.randn(*shape, generator=stream(0, name))


def a_table(**options):
    table = LocalTable(C, D, bias=draw(C, name="bias"), **options)
    table.weight.data.copy_(draw(C, D, name="rows"))
    return table


def a_pool(size=P, num_classes=C):
    ids = torch.randperm(num_classes, generator=stream(0, "pool"))[:size].sort().values
    return Candidates(ids, -draw(size, name="log_q").abs())


TARGET = torch.tensor([[4, 9], [-1, 2], [30, 30], [-1, -1], [11, 12]])


def run(table, rule, *, pool=None, keep=KEEP, query=None, target=TARGET, complete=True, seed=0):
    query = draw(A, D, name="query") if query is None else query
    options = {"rule": rule, "target": target, "complete": complete}
    return select(table, query, pool or a_pool(), keep, generator=stream(seed, "keep"), **options)


def equal(a, b):
    return torch.equal(a.ids, b.ids) and torch.equal(a.log_q, b.log_q)


@pytest.mark.parametrize("keep", [1, KEEP, P - 1])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_distinct_ascending_ids_of_the_pool_are_kept(rule, keep, num_shards):
    pool = a_pool()
    kept = run(a_table(num_shards=num_shards), rule, pool=pool, keep=keep)
    assert len(kept) <= keep
    assert num_shards > 1 or len(kept) == keep
    assert bool((kept.ids.diff() > 0).all())
    assert set(kept.ids.tolist()) <= set(pool.ids.tolist())
    assert (kept.ids.dtype, kept.log_q.dtype) == (torch.int64, torch.float32)


def test_log_q_is_lowered_by_the_log_weight_of_the_rule():
    pool, table = a_pool(), a_table()
    before = dict(zip(pool.ids.tolist(), pool.log_q.tolist(), strict=True))
    lowered = {}
    for name, rule in RULES.items():
        kept = run(table, rule, pool=pool)
        lowered[name] = torch.tensor([before[i] for i in kept.ids.tolist()]) - kept.log_q
    assert torch.equal(lowered["top"], torch.zeros(KEEP))
    torch.testing.assert_close(lowered["user"], torch.full((KEEP,), 0.25))
    assert bool((lowered["priority"] >= 0).all())
    assert bool((lowered["priority"] > 0).any())


def test_the_same_generator_keeps_the_same_classes_and_nothing_is_changed(rule):
    table, pool = a_table(), a_pool()
    rows, ids, log_q = table.weight.clone(), pool.ids.clone(), pool.log_q.clone()
    first, again = run(table, rule, pool=pool), run(table, rule, pool=pool)
    assert equal(first, again)
    assert torch.equal(table.weight, rows)
    assert equal(pool, Candidates(ids, log_q))


def test_only_the_priority_rule_uses_the_noise():
    for name, rule in RULES.items():
        outcomes = [run(a_table(), rule, seed=seed) for seed in range(5)]
        same = all(equal(outcome, outcomes[0]) for outcome in outcomes)
        assert same == (name != "priority")


def view_of(table, pool, noise, query=None):
    query = draw(A, D, name="query") if query is None else query
    return SelectionInput(
        ids=pool.ids,
        log_q=pool.log_q,
        rows=lambda start, stop: table.rows(pool.ids[start:stop]),
        query=query,
        target=TARGET,
        complete=True,
        temperature=0.7,
        noise=noise,
    )


def test_ties_go_to_the_lower_id(rule):
    """All rows but one are equal and no target is in the pool, so that all others tie."""
    table = LocalTable(C, D, bias=False)
    table.weight.data.fill_(0.5)
    table.weight.data[23] = 2.0
    pool = Candidates(torch.tensor([5, 6, 7, 8, 10, 13, 14, 17, 23, 25]), torch.zeros(10))
    given = view_of(table, pool, torch.ones(10), query=draw(A, D, name="query").abs())
    kept, _ = rule.select(given, 4)
    assert pool.ids[kept].tolist() == [5, 6, 7, 23]


@pytest.mark.parametrize(("chunk", "queries"), [(1, 1), (2, 3), (5, 2), (16, 4), (17, 5)])
def test_chunks_do_not_change_the_result(rule, chunk, queries, monkeypatch):
    unchunked = [run(a_table(), rule, keep=keep) for keep in range(1, P)]
    monkeypatch.setattr(top_rule, "CHUNK", chunk)
    monkeypatch.setattr(priority_rule, "CHUNK", chunk)
    monkeypatch.setattr(priority_rule, "QUERIES", queries)
    monkeypatch.setattr(priority_rule, "SCRATCH", 0)
    for keep in range(1, P):
        kept = run(a_table(), rule, keep=keep)
        assert torch.equal(kept.ids, unchunked[keep - 1].ids)
        torch.testing.assert_close(kept.log_q, unchunked[keep - 1].log_q)


def test_bfloat16_rows_are_scored_in_float32(rule):
    """As in a float32 table with the same numbers; sums of 257 terms differ in bfloat16."""
    narrow = LocalTable(C, 257, bias=draw(C, name="bias"), dtype=torch.bfloat16)
    wide = LocalTable(C, 257, bias=narrow.bias.detach().float())
    wide.weight.data.copy_(narrow.weight.data)
    query = 3 * draw(A, 257, name="query")
    for keep in range(1, P):
        kept = run(narrow, rule, query=query, keep=keep)
        assert equal(kept, run(wide, rule, query=query, keep=keep))


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returned."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


def test_no_tensor_of_queries_times_pool_is_ever_made(rule, monkeypatch):
    for module in (
        priority_rule,
        kernels_module,
    ):  # the scratch matrix would hold any of these sizes
        monkeypatch.setattr(module, "SCRATCH", 0)
    num_queries, size = 129, 5003
    table = LocalTable(6007, D, bias=draw(6007))
    pool, query = a_pool(size, 6007), draw(num_queries, D, name="query")
    target = torch.arange(num_queries)[:, None]
    with Largest() as seen:
        run(table, rule, pool=pool, query=query, target=target, keep=97)
    assert seen.numel >= size  # the mode was active
    bounds = {"Top": top_rule.CHUNK * num_queries, "Priority": priority_rule.QUERIES * size}
    assert seen.numel <= bounds.get(type(rule).__name__, D * 6007) < num_queries * size


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, P // 2, P - 1])
def test_a_diverged_row_shows_in_the_loss(rule, bad, place):
    table, pool = a_table(), a_pool()
    table.weight.data[pool.ids[place]] = bad
    query = draw(A, D, name="query")
    kept = run(table, rule, pool=pool, query=query, target=torch.full((A, 1), -1))
    if not isinstance(rule, Priority):  # there one bad row makes every share and weight bad
        assert int(pool.ids[place]) in kept.ids.tolist()
    _, log_sum = table.sampled_logits(GlobalBatch.local(query, torch.full((A, 1), -1)), kept)
    assert not bool(log_sum.isfinite().any()) or bad == torch.inf
    assert not bool(log_sum.isfinite().all())


@pytest.mark.parametrize("num_shards", [2, 3, 5])
@pytest.mark.parametrize("keep", [1, 2, 7])
@pytest.mark.parametrize("skewed", [False, True])
def test_shards_keep_the_union_of_what_each_would_keep_alone(rule, num_shards, keep, skewed):
    table = a_table(num_shards=num_shards)
    home = table.placement.shard(torch.arange(C)).tolist()
    ids = a_pool().ids.tolist()
    if skewed:  # all of shard 0 and one class of the last
        ids = [c for c in range(C) if home[c] == 0] + [home.index(num_shards - 1)]
    pool = Candidates(torch.tensor(sorted(ids)), -draw(len(ids), name="log_q").abs())
    noise = noise_of(stream(0, "keep"), len(ids))
    want, starved = {}, False
    for shard in range(num_shards):
        share = keep // num_shards + (1 if shard < keep % num_shards else 0)
        part = [p for p, c in enumerate(pool.ids.tolist()) if home[c] == shard]
        mine = Candidates(pool.ids[part], pool.log_q[part])
        starved |= len(part) < share
        positions, log_weight = range(len(part)), [0.0] * len(part)
        if len(part) > share:
            positions, log_weight = [], []
            if share:
                positions, log_weight = rule.select(view_of(table, mine, noise[part]), share)
        for place, weight in zip(positions, log_weight, strict=True):
            want[int(mine.ids[place])] = float(mine.log_q[place] - weight)
    got = run(table, rule, pool=pool, keep=keep)
    assert got.ids.tolist() == sorted(want)
    assert got.log_q.tolist() == pytest.approx([want[c] for c in sorted(want)], rel=1e-5)
    assert (len(got) < keep) == starved


def test_rules_are_found_by_name_and_an_object_is_returned_as_it_is():
    assert as_selection("top") == Top()
    assert as_selection("priority") == Priority()
    mine = Closest()
    assert as_selection(mine) is mine
    with pytest.raises(UsageError) as error:
        as_selection("pirority")
    assert str(error.value) == (
        "unknown selection 'pirority'. Did you mean 'priority'? Known: priority, top."
    )
    with pytest.raises(UsageError) as error:
        as_selection("softmax")
    assert str(error.value) == "unknown selection 'softmax'. Known: priority, top."
