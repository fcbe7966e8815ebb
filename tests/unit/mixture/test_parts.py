"""Copying and following, against loops over events and classes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from oracle import mixture as oracle
from unit.mixture.cases import C, cases, mixture_of

from tapas.mixture import Past


def spread(items, prob):
    """(C,) the probabilities `prob` of `items`, summed; padding must have none."""
    total = np.zeros(C)
    for item, value in zip(items, prob, strict=True):
        assert item >= 0 or value == 0
        if item >= 0:
            total[item] += value
    return total


@given(case=cases(parts=("copy",)))
def test_copying_is_a_loop_over_the_events_of_a_history(case):
    part = case.mixture.copy
    own = part.read(case.past, case.exclude)
    prob = part.prob(own)
    numbers = {"decay": float(part.decay), "power": math.exp(float(part.log_power))}
    for b, (items, ages) in enumerate(zip(case.items, case.ages, strict=True)):
        want = oracle.copy(items, ages, C, **numbers, excluded=case.excluded(b))
        assert prob.dtype == torch.float64
        np.testing.assert_allclose(spread(own.items[b].tolist(), prob[b].tolist()), want, rtol=1e-6)


@given(case=cases(parts=("follow",)))
def test_following_is_a_loop_over_the_latest_events_of_a_history(case):
    part = case.mixture.follow
    found = part.read(case.past, case.exclude)
    prob = part.prob(found)
    numbers = {"decay": float(part.decay), "trust": float(part.trust)}
    for b, (items, ages) in enumerate(zip(case.items, case.ages, strict=True)):
        want, totals = oracle.follow(items, ages, case.count, **numbers, excluded=case.excluded(b))
        mine = spread(found.items[b].flatten().tolist(), prob[b].flatten().tolist())
        np.testing.assert_allclose(mine, want, rtol=1e-6)
        np.testing.assert_allclose(found.total[b, : len(totals)], totals)


def test_an_item_had_often_and_lately_is_copied_most():
    """Item 4 twice, the second time in the last basket; item 7 once in that basket."""
    part = mixture_of(["copy"], np.zeros((C, C)), copy_decay=1.0, copy_log_power=0.0).copy
    past = Past.of(torch.tensor([[4, 2, 7, 4]]), torch.tensor([4]), torch.tensor([[4, 2, 1, 1]]))
    own = part.read(past, None)
    assert own.items.tolist() == [[2, 4, 7, -1]]
    weight = torch.tensor([[1 / 2, 1 / 4 + 1, 1, 0]], dtype=torch.float64)
    torch.testing.assert_close(part.prob(own), weight / weight.sum())


@pytest.mark.parametrize(("trust", "first"), [(0.0, math.e / (math.e + 1)), (9.0, 0.0)])
def test_the_last_item_counts_most_unless_others_have_many_more_counts(trust, first):
    count = np.zeros((C, C))
    count[3, 5], count[4, 6] = 1, 999
    part = mixture_of(["follow"], count, follow_decay=1.0, follow_trust=trust).follow
    found = part.read(Past.of(torch.tensor([[4, 3]]), torch.tensor([2])), None)
    prob = spread(found.items.flatten().tolist(), part.prob(found).flatten().tolist())
    assert prob[5] == pytest.approx(first, abs=1e-9)
    assert prob.sum() == pytest.approx(1)
