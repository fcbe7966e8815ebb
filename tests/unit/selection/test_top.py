"""The paper's rule against plain loops."""

import numpy as np
import pytest
import torch
from contracts.tables import select
from oracle import selection as oracle

from tapas import LocalTable, Top, UsageError
from tapas.candidates import Candidates
from tapas.rng import stream
from tapas.selection import SelectionInput
from tapas.selection.base import largest
from tapas.selection.top import CHUNK, batch_score

SIZES = [(1, 1, 2), (5, 3, 17), (67, 7, 31), (3, 2, CHUNK + 1)]  # queries, dim, pool


def draw(*shape, name):
    return torch.randn(*shape, generator=stream(0, name))


def a_view(num_queries, dim, size, *, temperature=1.0, scale=1.0, bias=None):
    weight = draw(size, dim, name="rows")
    bias = draw(size, name="bias") if bias is None else bias
    return SelectionInput(
        ids=torch.arange(size) * 3,
        log_q=-draw(size, name="log_q").abs(),
        rows=lambda start, stop: (weight[start:stop], bias[start:stop]),
        query=scale * draw(num_queries, dim, name="query"),
        target=torch.arange(num_queries)[:, None],
        complete=True,
        temperature=temperature,
        noise=torch.full((size,), torch.nan),  # whoever touches it shows
    )


def slow_scores(given):
    weight, bias = given.rows(0, len(given))
    return oracle.top_scores(oracle.logit(given.query, weight, bias), given.temperature)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.1, 3.0])
def test_scores_and_choice_are_those_of_the_loops(sizes, temperature):
    given = a_view(*sizes, temperature=temperature)
    want = slow_scores(given)
    np.testing.assert_allclose(batch_score(given).numpy(), want, rtol=1e-5, atol=1e-4)
    for keep in {1, len(given) // 2, len(given) - 1}:
        kept, log_weight = Top().select(given, keep)
        assert kept.tolist() == oracle.keep_largest(want, keep)
        assert torch.equal(log_weight, torch.zeros(keep))


def test_the_bias_is_divided_by_the_temperature_too():
    """At a tau of 10 a bias of 5 no longer beats a logit of 6 by another query's one."""
    given = a_view(2, 1, 3, temperature=10.0, bias=torch.tensor([5.0, 0.0, -5.0]))
    zero = a_view(2, 1, 3, temperature=10.0, bias=torch.zeros(3))
    difference = batch_score(given) - batch_score(zero)
    torch.testing.assert_close(difference, torch.tensor([0.5, 0.0, -0.5]))


def test_a_low_temperature_listens_to_the_one_who_shouts_and_a_high_one_to_the_crowd():
    """Class 0 is loved by one query (3 against -1, -1), class 1 liked by all (0.5 each).

    At tau = 0.1 the largest logit decides; at tau = 100 the mean does, 1/3 against 1/2.
    """
    weight = torch.tensor([[3.0, -1.0, -1.0], [0.5, 0.5, 0.5]])
    for temperature, winner in ((0.1, 0), (100.0, 1)):
        given = SelectionInput(
            ids=torch.tensor([4, 9]),
            log_q=torch.tensor([-50.0, 50.0]),  # the first pass has no say in the second
            rows=lambda start, stop: (weight[start:stop], torch.zeros(stop - start)),
            query=torch.eye(3),
            target=torch.tensor([[4], [4], [9]]),  # neither have the targets
            complete=True,
            temperature=temperature,
            noise=torch.ones(2),
        )
        assert Top().select(given, 1)[0].tolist() == [winner]


def test_scores_of_a_thousand_neither_overflow_nor_vanish():
    given = a_view(5, 3, 17, scale=1e3, temperature=0.1)
    want = slow_scores(given)
    assert max(map(abs, want)) > 1e4
    score = batch_score(given)
    np.testing.assert_allclose(score.numpy(), want, rtol=1e-5)
    assert Top().select(given, 7)[0].tolist() == oracle.keep_largest(want, 7)


@pytest.mark.parametrize("num_shards", [2, 3])
def test_each_shard_keeps_its_best_n_over_m(num_shards):
    """The paper's Algorithm 2; the first n mod m shards keep one more."""
    table = LocalTable(31, 3, bias=draw(31, name="bias"), num_shards=num_shards)
    pool = Candidates(torch.arange(2, 28), torch.zeros(26))
    query = draw(5, 3, name="query")
    home = table.placement.shard(pool.ids)
    rows = [part.tolist() for part in table.rows(pool.ids)]
    score = torch.tensor(oracle.top_scores(oracle.logit(query.tolist(), *rows), 0.7))
    want = []
    for shard, share in enumerate({2: (4, 3), 3: (3, 2, 2)}[num_shards]):
        kept = oracle.keep_largest(score[home == shard].tolist(), share)
        want += pool.ids[home == shard][kept].tolist()
    kept = select(table, query, pool, 7, rule=Top(), tau=0.7)
    assert kept.ids.tolist() == sorted(want)


@pytest.mark.parametrize("keep", range(1, 9))
def test_largest_gives_ties_to_the_lower_place_and_nan_the_first(keep):
    score = torch.tensor([1.0, 2.0, -torch.inf, 2.0, torch.nan, 1.0, 2.0, -torch.inf, 1.0])
    order = [4, 1, 3, 6, 0, 5, 8, 2, 7]
    kept, left_out = largest(score, keep)
    assert kept.tolist() == sorted(order[:keep])
    assert left_out == score[order[keep]]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "score_queries must be at least 1, got 0."),
        (2.5, "score_queries must be a whole number, got 2.5."),
        (True, "score_queries must be a whole number, got True."),
    ],
)
def test_a_bad_number_of_scoring_queries_is_refused(value, words):
    with pytest.raises(UsageError) as error:
        Top(score_queries=value)
    assert str(error.value) == words
    assert Top().score_queries is None
    assert Top(score_queries=3).score_queries == 3
