"""Scores of lists: metrics and buckets against loops, intervals against known variances."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracle import metrics as oracle

from tapas import DataError, UsageError
from tapas.evaluation.intervals import Interval
from tapas.evaluation.scores import (
    metrics_per_example,
    paired_difference,
    score_lists,
    score_together,
)
from tapas.rng import stream

P, K, L, C = 7, 23, 3, 31

lists = {
    "ranked": arrays(np.int64, (P, K), elements=st.integers(-1, C - 1)),
    "target": arrays(np.int64, (P, L), elements=st.just(-1) | st.integers(0, C - 1)),
    "counts": arrays(np.int64, C, elements=st.integers(0, 9)),
}


def long_lists(num_examples):
    ranked = torch.rand(num_examples, C, generator=stream(0, "lists")).argsort(dim=1)[:, :K]
    target = torch.randint(C, (num_examples, L), generator=stream(0, "target"))
    return ranked, target, torch.arange(C)


@given(**lists, k=st.integers(2, 20))
def test_every_metric_is_the_mean_over_the_examples_that_have_a_target(ranked, target, counts, k):
    target[0] = [4, -1, 4]
    tensors = torch.from_numpy(ranked), torch.from_numpy(target)
    got = score_lists(*tensors, train_counts=torch.from_numpy(counts), k=k)
    pairs = [
        (row, true)
        for row, true in zip(ranked.tolist(), target.tolist(), strict=True)
        if max(true) >= 0
    ]
    want = {
        "precision@1": [oracle.precision(*pair, 1) for pair in pairs],
        f"precision@{k}": [oracle.precision(*pair, k) for pair in pairs],
        "map@20-hits": [oracle.average_precision(*pair, 20, "hits") for pair in pairs],
    }
    for n in (5, 10, 20):
        want |= {
            f"map@{n}": [oracle.average_precision(*pair, n, "possible") for pair in pairs],
            f"recall@{n}": [oracle.recall(*pair, n) for pair in pairs],
            f"ndcg@{n}": [oracle.ndcg(*pair, n) for pair in pairs],
            f"mrr@{n}": [oracle.reciprocal_rank(row[:n], true) for row, true in pairs],
            f"hit-rate@{n}": [float(oracle.recall(*pair, n) > 0) for pair in pairs],
        }
    assert got.num_examples == len(pairs)
    assert {name: i.mean for name, i in got.metrics.items()} == pytest.approx(
        {name: sum(values) / len(values) for name, values in want.items()}, abs=1e-6
    )
    assert all(i.low - 1e-9 <= i.mean <= i.high + 1e-9 for i in got.metrics.values())


def buckets_by_hand(counts):
    """Take classes, most frequent first, until they make up half and 90 % of the events."""
    order = sorted(range(C), key=lambda c: (-counts[c], c))
    bucket, held, total = {}, 0, sum(counts)
    for c in order:
        name = "head" if 2 * held < total else "middle" if 10 * held < 9 * total else "tail"
        bucket[c] = name if counts[c] else "unseen"
        held += counts[c]
    return bucket


@given(**lists)
def test_buckets_count_targets_hits_and_listed_ids(ranked, target, counts):
    target[0] = [4, -1, 4]
    got = score_lists(
        torch.from_numpy(ranked), torch.from_numpy(target), train_counts=torch.from_numpy(counts)
    )
    bucket = buckets_by_hand(counts.tolist())
    targets, hits, listed = [], [], []
    for row, true in zip(ranked[:, :20].tolist(), target.tolist(), strict=True):
        true = {t for t in true if t >= 0}
        if true:
            targets += [bucket[t] for t in true]
            hits += [bucket[t] for t in true if t in row]
            listed += [c for c in row if c >= 0]
    assert got.coverage == len(set(listed))
    assert list(got.buckets) == ["head", "middle", "tail", "unseen"]
    for name, found in got.buckets.items():
        num_targets = targets.count(name)
        assert found.num_classes == list(bucket.values()).count(name)
        assert found.num_targets == num_targets
        if num_targets:
            assert found.recall.mean == hits.count(name) / num_targets
            assert found.recall.low <= found.recall.mean <= found.recall.high
        else:
            assert found.recall is None
        share = [bucket[c] for c in listed].count(name) / max(1, len(listed))
        assert found.share == pytest.approx(share)


def test_the_interval_of_a_buckets_recall_is_that_of_hits_over_targets():
    """400 examples with one head target each, half of them hits: a binomial's interval."""
    counts = torch.zeros(C).long()
    counts[[0, 25, 1]] = torch.tensor([9, 9, 2])  # 0 and 25 are the head
    target = torch.tensor([[0], [25]]).repeat(200, 1)
    head = score_lists(torch.arange(20).repeat(400, 1), target, train_counts=counts).buckets["head"]
    assert (head.num_targets, head.recall.mean) == (400, 0.5)
    half = 1.96 * (0.5 * 0.5 / 400) ** 0.5
    # with 1,000 resamples the standard error of each end is 3 % of the width
    assert head.recall.high - head.recall.low == pytest.approx(2 * half, rel=0.15)


def test_the_interval_contains_the_true_mean_about_95_times_in_100():
    """400 experiments of 60 coin flips: 95 % ± 4 standard errors of 1.1 %, and 1.1 % for skew."""
    coins = (torch.rand(400, 60, generator=stream(0, "coins")) < 0.3).float()
    zero = torch.zeros(60)
    found = [paired_difference(row, zero, seed=i) for i, row in enumerate(coins)]
    held = sum(i.low <= 0.3 <= i.high for i in found) / len(found)
    assert 0.895 < held < 0.994


def test_pairing_makes_small_differences_significant():
    noise = torch.randn(200, generator=stream(0, "noise"))
    got = paired_difference(noise + 0.01, noise)
    assert (got.mean, got.low, got.high) == pytest.approx((0.01, 0.01, 0.01), rel=1e-4)


def test_the_interval_depends_only_on_the_seed():
    ranked, target, counts = long_lists(50)
    first, again, other = (
        score_lists(ranked, target, train_counts=counts, seed=s) for s in (1, 1, 2)
    )
    assert first == again
    assert first.metrics["recall@20"].mean == other.metrics["recall@20"].mean
    assert first.metrics["recall@20"] != other.metrics["recall@20"]


def test_lists_that_are_scored_together_get_the_scores_they_get_alone():
    ranked, target, counts = long_lists(50)
    target[3], loss = -1, torch.arange(50.0)
    lists = {"a": (ranked, loss), "b": (ranked.flip(1), None), "c": (ranked.roll(1, 0), None)}
    scores, leads = score_together(lists, target, train_counts=counts, k=2, seed=3)
    for name, (each, lost) in lists.items():
        alone = score_lists(each, target, train_counts=counts, loss=lost, k=2, seed=3)
        assert scores[name] == alone
    value = {n: metrics_per_example(each, target)["map@20"] for n, (each, _) in lists.items()}
    assert leads == {n: paired_difference(value["a"], value[n], seed=3) for n in ("b", "c")}


def test_an_example_without_a_target_changes_nothing():
    ranked, target, counts = long_lists(50)
    want = score_lists(ranked, target, train_counts=counts, loss=torch.arange(50.0))
    ranked, target = torch.cat([ranked[:1], ranked]), torch.cat([target[:1] * 0 - 1, target])
    loss = torch.cat([torch.tensor([math.nan]), torch.arange(50.0)])
    assert score_lists(ranked, target, train_counts=counts, loss=loss) == want
    assert want.metrics["loss"].mean == 24.5


def test_the_interval_of_one_example_is_infinite():
    got = paired_difference(torch.tensor([0.5]), torch.tensor([0.25]))
    assert got == Interval(0.25, -math.inf, math.inf)


def test_errors_name_the_bad_input():
    ranked, target, counts = long_lists(5)
    good = {"ranked": ranked, "target": target, "train_counts": counts}
    nan, none = torch.tensor([0, 1, math.nan, 3, 4]), -torch.ones_like(target)
    for changed, kind, words in (
        ({"target": target * 0 + 99}, UsageError, "target holds class 99; expected ids from 0 to"),
        ({"ranked": ranked[:, :19]}, UsageError, "k is 20, but ranked has only 19 ids"),
        ({"ranked": ranked[:4]}, UsageError, "ranked has shape (4, 23); expected (P=5, K)."),
        ({"target": none}, UsageError, "no example has a target: there is nothing to score"),
        ({"loss": nan}, DataError, "loss of example 2 is nan. The model has diverged"),
    ):
        with pytest.raises(kind) as error:
            score_lists(**good | changed)
        assert str(error.value).startswith(words)
    with pytest.raises(
        UsageError, match=r"example 1 is NaN in one of a and b, but not in the other"
    ):
        paired_difference(torch.zeros(2), torch.tensor([0, math.nan]))
    with pytest.raises(UsageError, match=r"no example has a value: there is nothing to compare"):
        paired_difference(torch.tensor([math.nan]), torch.tensor([math.nan]))
