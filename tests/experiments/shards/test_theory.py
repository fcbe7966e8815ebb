"""The overlap that counting predicts."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from experiments.shards.overlap import expected_overlap
from tapas.errors import UsageError
from tapas.tables.placement import Placement


@pytest.mark.parametrize(("num_classes", "n", "m"), [(31, 7, 3), (10, 9, 4), (997, 100, 100)])
def test_it_is_the_mean_of_hypergeometric_numbers_cut_at_the_share(num_classes, n, m):
    placement = Placement(num_classes, m)
    total = 0.0
    for shard in range(m):
        keep = n // m + (shard < n % m)
        chance = stats.hypergeom(num_classes, n, placement.size(shard))
        hits = np.arange(n + 1)
        total += float((np.minimum(hits, keep) * chance.pmf(hits)).sum())
    assert math.isclose(expected_overlap(num_classes, n, m), total / n, rel_tol=1e-9)


def test_real_placements_lose_as_much():
    num_classes, n, m = 1_003, 100, 7
    best = torch.arange(n)
    share = torch.tensor([n // m + (j < n % m) for j in range(m)])
    found = []
    for seed in range(400):
        count = torch.bincount(Placement(num_classes, m, seed=seed).shard(best), minlength=m)
        found.append(float(torch.minimum(count, share).sum()) / n)
    error = np.mean(found) - expected_overlap(num_classes, n, m)
    # a right prediction fails 1 set of seeds in 16,000
    assert abs(error) < 4 * np.std(found, ddof=1) / math.sqrt(len(found))


def test_one_shard_loses_nothing_and_neither_do_shards_that_keep_all():
    assert expected_overlap(50, 20, 1) == pytest.approx(1)
    assert expected_overlap(6, 6, 3) == pytest.approx(1)


def test_the_short_formula_holds_at_the_papers_sizes():
    for m in (10, 100):
        short = 1 - math.sqrt((m - 1) / (2 * math.pi * 10_000))
        assert abs(expected_overlap(1_000_000, 10_000, m) - short) < 0.02 * (1 - short)


def test_more_shards_than_classes_are_refused():
    with pytest.raises(UsageError, match="cannot spread 5 classes over 6 shards"):
        expected_overlap(5, 2, 6)
