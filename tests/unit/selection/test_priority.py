"""The priority rule against plain loops for one draw of the noise, and its mean over many."""

import numpy as np
import pytest
import torch
from contracts.tables import select
from error_text import raises_text
from oracle import selection as oracle
from oracle.selection_inputs import draw, make_selection_input

from tapas import LocalTable, Priority
from tapas.candidates import Candidates
from tapas.rng import stream
from tapas.selection.priority import CHUNK, QUERIES, mean_share

SIZES = [(1, 1, 2), (5, 3, 17), (QUERIES + 3, 7, 31), (2, 2, CHUNK + 1)]  # queries, dim, pool


def slow_shares(given):
    weight, bias = (part.tolist() for part in given.rows(0, len(given)))
    logits = oracle.logit(given.query.tolist(), weight, bias)
    return oracle.shares(logits, given.ids, given.log_q, given.target, given.temperature)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.2, 3.0])
@pytest.mark.parametrize("complete", [True, False])
def test_one_draw_is_that_of_the_loops(sizes, temperature, complete):
    given = make_selection_input(*sizes, temperature=temperature, complete=complete)
    share = slow_shares(given)
    np.testing.assert_allclose(mean_share(given).numpy(), share, rtol=3e-4, atol=1e-12)
    for keep in {1, len(given) // 2, len(given) - 1}:
        kept, log_weight = Priority(floor=0.1).select(given, keep)
        want = oracle.priority(share, given.noise, keep, 0.0 if complete else 0.1)
        assert kept.tolist() == want[0]
        np.testing.assert_allclose(log_weight.numpy(), np.log(want[1]), rtol=1e-3, atol=3e-4)


def test_the_floor_is_a_tenth_spread_evenly_and_none_when_all_queries_score():
    """Two classes, one with all the softmax: only the floor can raise the other's g."""
    weight = torch.tensor([[0.0], [60.0]])
    given = {
        "rows": lambda start, stop: (weight[start:stop], torch.zeros(stop - start)),
        "query": torch.ones(1, 1),
        "log_q": torch.zeros(2),
        "target": torch.tensor([[-1]]),
        "noise": torch.tensor([1.0, 1.0]),
    }
    kept, log_weight = Priority().select(make_selection_input(1, 1, 2, complete=False, **given), 1)
    assert (kept.tolist(), log_weight.tolist()) == ([1], [0.0])
    given["noise"] = torch.tensor([0.01, 1.0])  # g / u: 0.05 / 0.01 beats 0.95
    kept, log_weight = Priority().select(make_selection_input(1, 1, 2, complete=False, **given), 1)
    assert kept.tolist() == [0]
    torch.testing.assert_close(log_weight.exp(), torch.tensor([0.95 / 0.05]))
    kept, _ = Priority().select(make_selection_input(1, 1, 2, complete=True, **given), 1)
    assert kept.tolist() == [1]


@pytest.mark.parametrize("queries", [1, 2, 64])
def test_the_targets_of_a_query_are_left_out_of_its_share(queries, monkeypatch):
    """Also with targets outside the pool, and with one that is listed twice."""
    monkeypatch.setattr("tapas.selection.priority.QUERIES", queries)
    monkeypatch.setattr("tapas.selection.priority.SCRATCH", 0)
    target = torch.tensor([[0, 3, 3, 7], [-1, -1, -1, -1], [6, -1, 9, 300], [3, 3, 3, 3]])
    given = make_selection_input(4, 3, 5, target=target)
    np.testing.assert_allclose(mean_share(given).numpy(), slow_shares(given), rtol=1e-4)
    assert mean_share(make_selection_input(1, 3, 5, target=target[:1], query=given.query[:1]))[
        :2
    ].tolist() == [
        0,
        0,
    ]


@pytest.mark.parametrize("queries", [1, 64])
def test_a_query_whose_targets_are_all_of_the_pool_adds_nothing(queries, monkeypatch):
    monkeypatch.setattr("tapas.selection.priority.QUERIES", queries)
    monkeypatch.setattr("tapas.selection.priority.SCRATCH", 0)
    target = torch.tensor([[0, 3, 6, 9], [-1, -1, -1, -1]])
    given = make_selection_input(2, 3, 4, target=target)
    np.testing.assert_allclose(mean_share(given).numpy(), slow_shares(given), rtol=1e-4)
    all_targets = make_selection_input(
        2, 3, 4, target=target[:1].repeat(2, 1), noise=torch.tensor([0.5, 0.1, 0.2, 1.0])
    )
    kept, log_weight = Priority().select(all_targets, 2)  # equal shares: the smallest u are kept
    assert kept.tolist() == [1, 2]
    torch.testing.assert_close(log_weight.exp(), torch.tensor([2.0, 2.0]))


B, C, D, P, DRAWS = 5, 31, 3, 17, 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_shards", "scorers", "temperature"),
    [
        (1, B, 1.0),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 2, 0.5), (3, B, 0.5))),
        (3, 2, 1.0),
    ],
)
def test_the_weighted_kept_sum_is_unbiased_for_every_query_and_class(
    num_shards, scorers, temperature
):
    """Also for queries that did not score the pool, at any tau, and for each shard."""
    keep = {1: 5, 3: 8}[num_shards]  # shards keep 3, 3 and 2
    # small logits: a weight with a heavy tail has no useful standard error
    table = LocalTable(C, D, bias=0.3 * draw(C, name="bias"), num_shards=num_shards)
    query = 0.5 * draw(B, D, name="query")
    target = torch.tensor([[4, 9], [-1, 2], [30, 30], [-1, -1], [11, 12]])
    ids = torch.randperm(C, generator=stream(0, "pool"))[:P].sort().values
    pool = Candidates(ids, -0.5 * draw(P, name="log_q").abs())
    kept_weight = torch.zeros(DRAWS, P, dtype=torch.float64)
    for i in range(DRAWS):
        kept = select(
            table,
            query[:scorers],
            pool,
            keep,
            rule=Priority(),
            target=target[:scorers],
            complete=scorers == B,
            generator=stream(1, "keep", i),
            tau=temperature,
        )
        place = torch.searchsorted(ids, kept.ids)
        kept_weight[i, place] = (pool.log_q[place] - kept.log_q).double().exp()
    weight, bias = table.rows(ids)
    term = (query @ weight.t() + bias - pool.log_q).double().exp()
    term[(ids == target[:, :, None]).any(dim=1)] = 0.0
    for estimate, truth in (
        (kept_weight @ term.t(), term.sum(dim=1)),  # the sums in the losses
        (kept_weight, torch.ones(P, dtype=torch.float64)),  # each class counts once in the mean
    ):
        error = (estimate.mean(dim=0) - truth).abs()
        # 22 comparisons in each of 4 cases: a false alarm in 1 of 1,600 seeds at 4.5 errors
        # (a class that is always kept has only the rounding error of float32)
        assert bool((error <= 4.5 * estimate.std(dim=0) / DRAWS**0.5 + 1e-6).all())


def test_a_floor_outside_0_to_1_is_refused():
    for floor in (1.5, -0.1, torch.nan):
        with raises_text(f"floor must be between 0 and 1, got {floor}."):
            Priority(floor=floor)
