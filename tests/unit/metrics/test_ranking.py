"""Ranking metrics against their definitions, one example at a time."""

import numpy as np
import pytest
import torch
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracle import metrics as oracle

from tapas import metrics
from tapas.rng import stream

B, N, L, C = 5, 7, 3, 11

lists = {
    "ranked": arrays(np.int64, (B, N), elements=st.integers(-1, C - 1)),
    "target": arrays(
        np.int64, (B, L), elements=st.sampled_from([-100, -1]) | st.integers(0, C - 1)
    ),
}


def each(metric, ranked, target, *args):
    rows = zip(ranked.tolist(), target.tolist(), strict=True)
    return torch.tensor([metric(row, true, *args) for row, true in rows])


def check(got, metric, ranked, target, *args):
    want = each(metric, ranked, target, *args)
    assert (got.shape, got.dtype) == ((B,), torch.float32)
    torch.testing.assert_close(got, want, equal_nan=True)
    return float(want[(target >= 0).any(dim=1)].double().mean())


@given(**lists, k=st.integers(1, N))
def test_every_metric_is_its_definition_and_means_are_over_examples_with_targets(ranked, target, k):
    """Including padding, lists that end early, and ids repeated in lists and targets."""
    target[0], target[1] = 3, -1
    both = torch.from_numpy(ranked), torch.from_numpy(target)
    check(metrics.recall_at_k(*both, k), oracle.recall, *both, k)
    check(metrics.ndcg_at_k(*both, k), oracle.ndcg, *both, k)
    check(metrics.reciprocal_rank(*both), oracle.reciprocal_rank, *both)
    mean = check(metrics.precision_at_k(*both, k), oracle.precision, *both, k)
    assert metrics.mean_precision_at_k(*both, k) == pytest.approx(mean)
    for normalise in ("possible", "hits"):
        got = metrics.average_precision_at_k(*both, k, normalise=normalise)
        mean = check(got, oracle.average_precision, *both, k, normalise)
        got = metrics.mean_average_precision_at_k(*both, k, normalise=normalise)
        assert isinstance(got, float)
        assert got == pytest.approx(mean)


@given(ranked=lists["ranked"], target=arrays(np.int64, (B,), elements=st.integers(-1, C - 1)))
def test_one_target_per_example_may_be_a_vector_as_the_heads_take_it(ranked, target):
    target[0] = 3
    ranked, target = torch.from_numpy(ranked), torch.from_numpy(target)
    for metric in (
        metrics.precision_at_k,
        metrics.recall_at_k,
        metrics.average_precision_at_k,
        metrics.ndcg_at_k,
    ):
        got, want = metric(ranked, target, N), metric(ranked, target[:, None], N)
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    got = metrics.reciprocal_rank(ranked, target)
    want = metrics.reciprocal_rank(ranked, target[:, None])
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    for mean in (metrics.mean_precision_at_k, metrics.mean_average_precision_at_k):
        assert mean(ranked, target, N) == mean(ranked, target[:, None], N)


@pytest.mark.parametrize(
    ("ranked", "target", "k", "possible", "hits"),
    [
        ([7, 3, 9], [7, 9], 3, (1 + 2 / 3) / 2, (1 + 2 / 3) / 2),
        ([7, 3, 2, 1, 0], [7, 9, 8, 6, 5], 5, 1 / 5, 1.0),  # one hit at rank 1 of five
        ([3, 7, 2, 1, 0], [7], 5, 1 / 2, 1 / 2),
        ([7, 9, 2], [7, 9, 8, 6], 2, 1.0, 1.0),  # no list of two could do better
        ([7, 7, 9], [7, 9], 3, (1 + 2 / 3) / 2, (1 + 2 / 3) / 2),  # 7 is found once
        ([1, 2, 3], [7, 9], 3, 0.0, 0.0),
        ([1, 2, 7], [7, 9], 2, 0.0, 0.0),  # found too late
        ([-1, 7, -1], [7, 7, -1], 3, 1 / 2, 1 / 2),  # |Y| is 1
    ],
)
def test_average_precision_by_hand_under_both_normalisations(ranked, target, k, possible, hits):
    arguments = torch.tensor([ranked]), torch.tensor([target]), k
    got = metrics.average_precision_at_k(*arguments)
    torch.testing.assert_close(got, torch.tensor([possible]).float())
    got = metrics.average_precision_at_k(*arguments, normalise="hits")
    torch.testing.assert_close(got, torch.tensor([hits]).float())


def test_the_other_metrics_by_hand():
    ranked, target = torch.tensor([[7, 3, 9, 5]]), torch.tensor([[9, 5, 8]])
    assert metrics.precision_at_k(ranked, target, 4).tolist() == [0.5]
    torch.testing.assert_close(metrics.recall_at_k(ranked, target, 3), torch.tensor([1 / 3]))
    torch.testing.assert_close(metrics.reciprocal_rank(ranked, target), torch.tensor([1 / 3]))
    ideal = 1 + 1 / np.log2(3) + 1 / np.log2(4)
    gain = 1 / np.log2(4) + 1 / np.log2(5)
    want = torch.tensor([gain / ideal]).float()
    torch.testing.assert_close(metrics.ndcg_at_k(ranked, target, 4), want)


def test_ids_that_float32_cannot_distinguish_are_distinct():
    """2^24 and 2^24 + 1 are the same number in float32."""
    ranked, target = torch.tensor([[2**24, 5]]), torch.tensor([[2**24 + 1]])
    assert metrics.precision_at_k(ranked, target, 2).tolist() == [0.0]
    assert metrics.precision_at_k(ranked + 1, target, 2).tolist() == [0.5]


@given(
    scores=arrays(np.float32, (B, C), elements=st.sampled_from([-np.inf, -1.0, 0.0, 1.0, np.inf])),
    k=st.integers(1, C),
    seed=st.integers(0, 3),
)
def test_ranked_classes_are_distinct_and_none_left_out_scores_higher(scores, k, seed):
    ids = metrics.rank_classes(torch.from_numpy(scores), k, seed=seed).numpy()
    assert ids.shape == (B, k)
    for b in range(B):
        assert len(set(ids[b].tolist())) == k
        want = np.sort(scores[b])[::-1][:k]
        np.testing.assert_array_equal(scores[b][ids[b]], want)


def test_a_model_that_scores_everything_the_same_gets_chance_level():
    """Most targets are class 0, which breaking ties by id would always put first."""
    num_examples, k = 4000, 3
    target = torch.zeros(num_examples, 1, dtype=torch.int64)
    target[::4, 0] = 6
    ranked = metrics.rank_classes(torch.zeros(num_examples, C), k, seed=5)
    for value, chance in (
        (metrics.recall_at_k(ranked, target, k), k / C),
        (metrics.precision_at_k(ranked, target, k), 1 / C),
        (metrics.reciprocal_rank(ranked[:, :1], target), 1 / C),
        (metrics.average_precision_at_k(ranked, target, k), (1 + 1 / 2 + 1 / 3) / C),
    ):
        error = float(value.double().mean()) - chance
        # 4 comparisons at 4.5 standard errors: a fair shuffle fails 1 seed in 37,000
        assert abs(error) < 4.5 * float(value.std()) / num_examples**0.5


def test_tied_classes_are_equally_likely_at_every_rank():
    """Classes 0 .. 6 tie above the rest: each of the first seven ranks is uniform over them."""
    num_examples = 7000
    scores = torch.zeros(num_examples, C)
    scores[:, :7] = 1.0
    ranked = metrics.rank_classes(scores, C)
    count = torch.stack([(ranked == c).sum(dim=0) for c in range(C)]).double()
    assert bool((count[:7, 7:] == 0).all())
    for size, block in ((7, count[:7, :7]), (4, count[7:, 7:])):
        error = (block / num_examples - 1 / size).abs()
        # 65 comparisons in all at 5 standard errors: a fair shuffle fails 1 seed in 27,000
        assert bool((error < 5 * (1 / size * (1 - 1 / size) / num_examples) ** 0.5).all())


def test_ties_depend_only_on_the_seed():
    scores = torch.zeros(B, C)
    first = metrics.rank_classes(scores, C, seed=1)
    assert torch.equal(first, metrics.rank_classes(scores, C, seed=1))
    assert not torch.equal(first, metrics.rank_classes(scores, C, seed=2))
    distinct = torch.randn(B, C, generator=stream(0, "scores"))
    for seed in (1, 2):
        assert torch.equal(metrics.rank_classes(distinct, 4, seed=seed), distinct.topk(4).indices)


RANKED, TARGET = torch.tensor([[4, 5], [6, 7]]), torch.tensor([[4], [-1]])


def test_errors_name_the_value_and_the_expectation():
    with raises_text("k is 4, but there are only 3 classes."):
        metrics.rank_classes(torch.zeros(2, 3), 4)
    with raises_text("scores has shape (3,); expected (B, C)."):
        metrics.rank_classes(torch.zeros(3), 1)
    with raises_text("k must be at least 1, got 0."):
        metrics.rank_classes(torch.zeros(2, 3), 0)
    with raises_text("scores contain NaN, which cannot be ranked."):
        metrics.rank_classes(torch.tensor([[0.0, torch.nan]]), 1)
    with raises_text(
        "k is 3, but ranked has only 2 ids for each example. Rank at least k classes."
    ):
        metrics.recall_at_k(RANKED, TARGET, 3)
    with raises_text("k must be an integer, got 1.5."):
        metrics.ndcg_at_k(RANKED, TARGET, 1.5)
    with raises_text("target has shape (1,); expected (2) or (2, L) for ranked of shape (2, 2)."):
        metrics.precision_at_k(RANKED, TARGET[0], 1)
    with raises_text(
        "target has shape (2, 1, 1); expected (2) or (2, L) for ranked of shape (2, 2)."
    ):
        metrics.precision_at_k(RANKED, TARGET[..., None], 1)
    with raises_text("target has shape (3,); expected (2) or (2, L) for ranked of shape (2, 2)."):
        metrics.mean_precision_at_k(RANKED, torch.zeros(3, dtype=torch.int64), 1)
    with raises_text("ranked has dtype torch.float32; expected int64 class ids"):
        metrics.reciprocal_rank(RANKED.float(), TARGET)
    with raises_text("normalise must be 'possible' or 'hits', got 'kaggle'."):
        metrics.average_precision_at_k(RANKED, TARGET, 2, normalise="kaggle")
    with raises_text("no example has a target: there is nothing to average."):
        metrics.mean_precision_at_k(RANKED, TARGET[1:].repeat(2, 1), 2)
    with raises_text("no example has a target: there is nothing to average."):
        metrics.mean_average_precision_at_k(RANKED, TARGET[:, :0], 2)


def test_sequences_keep_their_leading_shape():
    ranked = torch.tensor([[[4, 5], [6, 7], [8, 9]], [[5, 4], [7, 6], [9, 8]]])
    target = torch.tensor([[4, 7, 1], [4, -100, 9]])
    want = torch.tensor([[1, 0.5, 0], [0.5, torch.nan, 1]])
    for true in (target, target[..., None], torch.stack([target, target], dim=-1)):
        torch.testing.assert_close(metrics.reciprocal_rank(ranked, true), want, equal_nan=True)
        assert metrics.recall_at_k(ranked, true, 1).nan_to_num(7).tolist() == [[1, 0, 0], [0, 7, 1]]
        assert metrics.mean_average_precision_at_k(ranked, true, 2) == pytest.approx(3 / 5)
    with raises_text("target has shape (6,); expected (2, 3) or (2, 3, L) for ranked of shape"):
        metrics.ndcg_at_k(ranked, target.view(-1), 2)


@pytest.mark.parametrize(
    "metric", [metrics.reciprocal_rank, lambda r, t: metrics.ndcg_at_k(r, t, 2)]
)
def test_what_is_no_tensor_or_a_scalar_is_an_error_that_names_it(metric):
    ranked, target = torch.tensor([[1, 2]]), torch.tensor([1])
    no_tensor = "must be a torch.Tensor, got list. torch.as_tensor makes one."
    with raises_text(f"target {no_tensor}"):
        metric(ranked, [1])
    with raises_text(f"ranked {no_tensor}"):
        metric([[1, 2]], target)
    with raises_text("ranked has shape (); expected (B, N) or (..., N)."):
        metric(torch.tensor(1), target)
    with raises_text("target has shape (3,); expected (1) or (1, L) for ranked of shape (1, 2)."):
        metric(ranked, torch.tensor([1, 2, 3]))
