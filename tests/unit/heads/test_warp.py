"""WARP against its definition, one draw at a time, and its rank estimate in distribution."""

import math

import numpy as np
import pytest
import torch
from oracle import ranking_heads as oracle
from oracle.flat_heads import TARGET, WEIGHT, B, C, D, queries, random_table, scores_of

import tapas
from tapas.heads import warp
from tapas.heads.warp import WARP, first_above
from tapas.losses.warp import harmonic, warp_loss


def make(tries=45, num_classes=C, **options):
    return WARP(table=random_table(num_classes=num_classes, **options), tries=tries, seed=3)


def test_without_a_violator_there_is_no_loss_and_no_row_moves():
    head = make(row_optimizer=tapas.optim.LazyAdam.fused(lr=0.1))
    query, target = queries().requires_grad_(), torch.zeros(B, dtype=torch.int64)
    head(query, target).backward()
    query.grad = None
    head.table.bias[0] = 100.0
    before = {name: value.clone() for name, value in head.table.row_tensors().items()}
    assert len(before) == 6
    loss = head(query, target)
    assert loss.item() == 0
    loss.backward()
    assert not query.grad.any()
    # momentum would move a row that is touched
    for name, value in head.table.row_tensors().items():
        assert torch.equal(value, before[name]), name


def test_violators_violate_and_are_never_targets_of_the_example():
    head = make(tries=9)
    batch = head._prepare(queries(), TARGET, WEIGHT)
    logits = scores_of(head, batch.query)
    seen = 0
    for step in range(50):
        head.step = step
        example, column, violator, rank = head._violations(batch)
        target = batch.target[example, column]
        assert bool((logits[example, violator] > logits[example, target] - 1 - 1e-5).all())
        assert not bool((batch.target[example] == violator[:, None]).any())
        assert int(rank.min()) >= 1
        seen += len(rank)
    assert seen > 100


def test_a_rank_of_less_than_one_class_is_no_violation():
    """Two other classes, one of which violates: found at the third try, its rank rounds to 0."""
    head = make(tries=40, num_classes=3)
    with torch.no_grad():
        head.table.weight.zero_()
        head.table.bias.copy_(torch.tensor([0.0, 0.0, -9.0]))
    batch = head._prepare(torch.zeros(1, D), torch.tensor([0]), None)
    ranks = []
    for step in range(60):
        head.step = step
        ranks.append(head._violations(batch).rank)
    assert set(torch.cat(ranks).tolist()) == {1, 2}
    assert min(len(rank) for rank in ranks) == 0


STEPS, FEW_TRIES = 1_000, 12


@pytest.fixture(scope="module")
def violations():
    """Violators and rank estimates of one target whose violators are known, step by step."""
    num_classes, high = 23, [3, 8, 11, 20]
    head = make(FEW_TRIES, num_classes)
    with torch.no_grad():
        head.table.weight.zero_()
        head.table.bias.fill_(-5.0)
        head.table.bias[torch.tensor([0, *high])] = 0.5  # class 0 is the target
    batch = head._prepare(torch.zeros(1, D), torch.tensor([0]), None)
    found = []
    for step in range(STEPS):
        head.step = step
        found.append(head._violations(batch))
    return num_classes, high, found


def test_rank_estimates_and_failed_searches_follow_the_geometric_distribution(violations):
    steps, tries = STEPS, FEW_TRIES
    num_classes, high, found = violations
    others, p = num_classes - 1, len(high) / (num_classes - 1)
    law = {n: (1 - p) ** (n - 1) * p for n in range(1, tries + 1)}
    # draws of the target are skipped, so that some searches end after fewer than 12
    mean = chance = square = 0.0
    for drawn_own in range(tries + 1):
        odds = math.comb(tries, drawn_own) / num_classes**drawn_own
        odds *= (1 - 1 / num_classes) ** (tries - drawn_own)
        for n in range(1, tries - drawn_own + 1):
            weight = float(harmonic(torch.tensor(others // n)))
            mean += odds * law[n] * weight
            square += odds * law[n] * weight**2
            chance += odds * law[n]
    got = [float(harmonic(each.rank[0])) if len(each.rank) else 0.0 for each in found]
    # two comparisons at 4.2 standard errors: a correct search fails 1 seed in 18,000
    error = math.sqrt((square - mean**2) / steps)
    assert abs(np.mean(got) - mean) < 4.2 * error
    share = sum(len(each.rank) for each in found) / steps
    assert abs(share - chance) < 4.2 * math.sqrt(chance * (1 - chance) / steps)


def test_each_violating_class_is_found_equally_often(violations):
    _, high, found = violations
    ids = torch.cat([each.violator for each in found])
    count = torch.stack([(ids == class_id).sum() for class_id in high]).double()
    assert int(count.sum()) == len(ids)
    even = len(ids) / len(high)
    # chi-square of 3 degrees: above 22.0 for 1 correct search in 15,000
    assert float(((count - even) ** 2 / even).sum()) < 22.0


@pytest.mark.parametrize("num_columns", [1, 2, 3])
def test_the_search_is_that_of_the_definition_for_all_starts(num_columns):
    width = num_columns * warp.BLOCK
    score = torch.randn(2, width, generator=tapas.rng.stream(0, "score"))
    score[0, ::5] = -torch.inf
    start = torch.arange(width).repeat(2)
    example = torch.arange(2).repeat_interleave(width)
    bar = torch.linspace(0.0, 3.5, 2 * width)
    found, place, passed = first_above(score, example, start, bar)
    want = []
    for i in range(2 * width):
        order = oracle.walk(range(width), int(start[i]), warp.BLOCK)
        assert sorted(order) == list(range(width))
        value = [float(score[example[i], c]) for c in order]
        end = next((n for n, v in enumerate(value) if v > bar[i]), None)
        if end is not None:
            counted = sum(v != -math.inf for v in value[: end + 1])
            want.append((i, order[end], counted))
    assert list(zip(found.tolist(), place.tolist(), passed.tolist(), strict=True)) == want
    assert 0 < len(want) < 2 * width


def test_the_harmonic_numbers_are_sums_of_fractions():
    k = torch.tensor([0, 1, 2, 3, 10, 1000])
    want = [sum(1 / i for i in range(1, n + 1)) for n in k.tolist()]
    torch.testing.assert_close(harmonic(k), torch.tensor(want, dtype=torch.float64))
    assert float(harmonic(torch.tensor(10**9))) == pytest.approx(math.log(1e9) + 0.5772156654)


def test_a_rounded_margin_never_makes_a_loss_negative():
    assert float(warp_loss(torch.tensor([2.0]), torch.tensor([0.99]), torch.tensor([3]))) == 0


def test_an_example_with_every_class_as_target_has_no_loss():
    head = make(num_classes=3)
    assert head(queries(1), torch.tensor([[0, 1, 2]])).item() == 0
