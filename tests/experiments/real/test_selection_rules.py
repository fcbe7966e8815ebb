"""Variants of the paper's rule: each against its definition, and divergence."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from contracts import test_selection as contract
from contracts.test_selection import (  # noqa: F401  run here for the rules of this package
    test_chunks_do_not_change_the_result,
    test_shards_keep_the_union_of_what_each_would_keep_alone,
    test_ties_go_to_the_lower_id,
)
from oracle import selection as oracle
from oracle.selection_inputs import make_selection_input

from experiments.real.selection_rules import VARIANTS, TemperedPriority, TopPerQuery, TopWithFloor
from tapas import Top
from tapas.rng import stream
from tapas.selection import Priority
from tapas.tables.ranks import GlobalBatch


@pytest.fixture(params=VARIANTS)
def rule(request):
    return VARIANTS[request.param]


def slow_logits(given):
    weight, bias = (part.tolist() for part in given.rows(0, len(given)))
    return oracle.logit(given.query.tolist(), weight, bias)


@pytest.mark.parametrize("sizes", [(1, 1, 2), (5, 3, 17), (67, 7, 31)], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_top_per_query_keeps_the_highest_mean_share_unweighted(sizes, temperature):
    given = make_selection_input(*sizes, temperature=temperature, noise=torch.empty(0))
    share = oracle.shares(slow_logits(given), given.ids, given.log_q, given.target, temperature)
    for keep in {1, len(given) // 2, len(given) - 1}:
        kept, log_weight = TopPerQuery().select(given, keep)
        assert kept.tolist() == oracle.keep_largest(share, keep)
        assert log_weight.tolist() == [0.0] * keep


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("keep", [1, 2, 7, 16])
def test_the_top_ones_are_kept_with_any_noise(share, keep):
    """The rest have the highest noise and are weighted by the pool without the top ones."""
    num_top = max(1, keep - round(share * keep))
    for seed in range(10):
        given = make_selection_input(5, 3, 17, seed=seed)
        score = oracle.top_scores(slow_logits(given), 1.0)
        top = oracle.keep_largest(score, num_top)
        others = [place for place in range(17) if place not in top]
        lucky = sorted(others, key=lambda place: -float(given.noise[place]))[: keep - num_top]
        kept, log_weight = TopWithFloor(share=share).select(given, keep)
        assert kept.tolist() == sorted([*top, *lucky])
        heavy = len(others) / max(1, len(lucky))
        want = [1.0 if place in top else heavy for place in kept.tolist()]
        np.testing.assert_allclose(log_weight.exp().numpy(), want, rtol=1e-6)
        if share == 0:
            assert torch.equal(kept, Top().select(given, keep)[0])


def test_drawn_classes_estimate_the_rest_of_the_pool_without_bias():
    draws, keep, num_top = 2_000, 7, 3  # 7 - round(3.5): half to even
    given = make_selection_input(5, 3, 17)
    top = oracle.keep_largest(oracle.top_scores(slow_logits(given), 1.0), num_top)
    term = torch.from_numpy(np.exp(slow_logits(given) - given.log_q.double().numpy()))  # (A, P)
    weight = torch.zeros(draws, 17, dtype=torch.float64)
    for seed in range(draws):
        noise = 1 - torch.rand(17, generator=stream(seed, "noise"))
        kept, log_weight = TopWithFloor().select(replace(given, noise=noise), keep)
        weight[seed, kept] = log_weight.double().exp()
    assert bool((weight[:, top] == 1).all())
    rest = [place for place in range(17) if place not in top]
    for estimate, truth in (
        (weight[:, rest], torch.ones(len(rest), dtype=torch.float64)),  # each once in the mean
        (weight[:, rest] @ term[:, rest].t(), term[:, rest].sum(dim=1)),
    ):
        error = (estimate.mean(dim=0) - truth).abs()
        # 14 classes and 5 queries: a false alarm in 1 of 7,700 seeds at 4.5 errors
        assert bool((error < 4.5 * estimate.std(dim=0) / draws**0.5).all())


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_tempered_priority_keeps_the_same_classes_with_a_power_of_the_weights(power):
    given = make_selection_input(5, 3, 17)
    kept, log_weight = Priority().select(given, 6)
    same, tempered = TemperedPriority(power=power).select(given, 6)
    assert torch.equal(kept, same)
    assert torch.equal(tempered, power * log_weight)
    assert bool((log_weight > 0).any())


def test_only_random_rules_use_the_noise(rule):
    seen = {str(contract.run(contract.a_table(), rule, seed=seed)) for seed in range(5)}
    assert (len(seen) > 1) == rule.random == (not isinstance(rule, TopPerQuery))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_diverged_row_shows_in_the_loss(rule, bad):
    table, pool = contract.a_table(), contract.a_pool()
    table.weight.data[pool.ids[8]] = bad
    query, own = contract.draw(contract.A, contract.D, name="query"), torch.full((5, 1), -1)
    kept = contract.run(table, rule, pool=pool, query=query, target=own)
    _, log_sum = table.sampled_logits(GlobalBatch.local(query, own), kept)
    assert not bool(log_sum.isfinite().all())
