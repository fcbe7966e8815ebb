"""Top k in chunks against sorting all scores, where most of them tie."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracle.tables import top

import tapas.native as native
from tapas import LocalTable
from tapas.rng import stream
from tapas.tables import exhaustive
from tapas.tables.exhaustive import merge_topk, topk_of_chunk

pytestmark = pytest.mark.usefixtures("kernels")


@st.composite
def rankings(draw):
    """Scores of -2 .. 2 and some of -inf, and a k of at most the number of classes."""
    num_queries, num_classes = draw(st.integers(1, 4)), draw(st.integers(1, 23))
    few = st.sampled_from([-np.inf, -2.0, -1.0, -0.0, 0.0, 1.0, 2.0])
    scores = draw(arrays(np.float32, (num_queries, num_classes), elements=few))
    return scores, draw(st.integers(1, num_classes))


@given(rankings(), st.data())
def test_merging_chunks_of_any_size_equals_ranking_all_scores(ranking, data):
    scores, k = ranking
    num_queries, num_classes = scores.shape
    size = data.draw(st.integers(1, num_classes), label="chunk")
    value = torch.full((num_queries, k), -torch.inf)
    ids = torch.full((num_queries, k), num_classes)
    for start in data.draw(st.permutations(range(0, num_classes, size)), label="order"):
        best, column = topk_of_chunk(torch.from_numpy(scores[:, start : start + size]), k)
        value, ids = merge_topk(torch.cat([value, best], 1), torch.cat([ids, column + start], 1), k)
    want = top(scores, k)
    np.testing.assert_array_equal(value.numpy(), want[0])
    np.testing.assert_array_equal(ids.numpy(), want[1])


@given(
    weight=arrays(np.float32, (17, 3), elements=st.sampled_from([-1.0, 0.0, 1.0])),
    query=arrays(np.float32, (3, 3), elements=st.sampled_from([-1.0, 0.0, 1.0])),
    exclude=arrays(np.int64, (3, 5), elements=st.integers(-2, 16)),
    k=st.integers(1, 17),
    chunk=st.integers(1, 17),
)
def test_a_table_ranks_like_a_sort_with_any_chunk_size(weight, query, exclude, k, chunk):
    table = LocalTable(17, 3, bias=False)
    table.weight.data.copy_(torch.from_numpy(weight))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tapas.tables.exhaustive.SCORES_PER_CHUNK", chunk * len(query))
        assert exhaustive.chunks(17, len(query))[0] == (0, chunk)
        score, ids = table.topk(torch.from_numpy(query), k, exclude=torch.from_numpy(exclude))
        partition = table.log_partition(torch.from_numpy(query))
    scores = query @ weight.T
    want = top(scores, k, exclude)
    np.testing.assert_array_equal(ids.numpy(), want[1])
    np.testing.assert_array_equal(score.numpy(), want[0])
    np.testing.assert_allclose(partition.numpy(), np.log(np.exp(scores).sum(axis=1)), rtol=1e-5)


def test_more_queries_than_fit_are_ranked_one_class_at_a_time(monkeypatch):
    monkeypatch.setattr("tapas.tables.exhaustive.SCORES_PER_CHUNK", 5)
    table = LocalTable(31, 3)
    query = torch.eye(3).repeat(3, 1)
    _, ids = table.topk(query, 31)
    want = top((query @ table.weight.detach().t()).numpy(), 31)
    np.testing.assert_array_equal(ids.numpy(), want[1])


@pytest.mark.parametrize("k", [3, native.MAX_TOPK + 1])
def test_autocast_changes_nothing(k, kernels):
    table, query = LocalTable(700, 5), torch.randn(4, 5, generator=stream(0, "q"))
    want = (*table.topk(query, k), *table.topk_log_prob(query, k), table.log_partition(query))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = (*table.topk(query, k), *table.topk_log_prob(query, k), table.log_partition(query))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_class_with_nan_is_ranked_first(monkeypatch):
    table = LocalTable(31, 3)
    table.weight.data[17] = torch.nan
    for chunk in (1, 4, 100):
        monkeypatch.setattr("tapas.tables.exhaustive.SCORES_PER_CHUNK", chunk)
        score, ids = table.topk(torch.ones(1, 3), 2)
        assert int(ids[0, 0]) == 17
        assert bool(score[0, 0].isnan())


@given(
    weight=arrays(np.float32, (23, 2), elements=st.sampled_from([-1.0, 0.0, 1.0])),
    query=arrays(np.float32, (3, 2), elements=st.sampled_from([-1.0, 0.0, 1.0])),
    exclude=arrays(np.int64, (3, 5), elements=st.integers(-2, 22)),
    k=st.integers(1, 23),
    order=st.permutations(range(23)),
    most=st.integers(1, 25),
    biased=st.booleans(),
)
def test_rows_in_any_order_are_ranked_by_score_and_then_by_id(
    weight, query, exclude, k, order, most, biased
):
    """At most nine different scores, so that there is nearly always a tie at the k-th place."""
    ids = torch.tensor(order) * 7 + 3  # of row 0, row 1, ...
    bias = torch.from_numpy(weight[:, 0].copy()) if biased else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tapas.native.MAX_TOPK", most)
        value, got = exhaustive.topk_by_id(
            torch.from_numpy(weight),
            bias,
            torch.from_numpy(query),
            k,
            torch.from_numpy(exclude),
            lambda rows: ids[rows],
        )
    scores = query @ weight.T + (weight[:, 0] if biased else 0)
    for b in range(3):
        left = [row for row in range(23) if row not in exclude[b]]
        ranked = sorted((-scores[b, row], int(ids[row])) for row in left)[:k]
        missing = k - len(ranked)
        assert got[b].tolist() == [i for _, i in ranked] + [-1] * missing
        assert value[b].tolist() == [-s for s, _ in ranked] + [-np.inf] * missing


def test_a_tie_at_the_kth_place_does_not_change_the_scores(kernels):
    """Summed in another order, scores would be rounded differently, and shards would not tie."""
    which = torch.randperm(400, generator=stream(0, "which")) % 3
    weight = torch.randn(3, 65, generator=stream(0, "rows"))[which]
    query = torch.randn(9, 65, generator=stream(0, "query"))
    ids = torch.randperm(400, generator=stream(0, "ids"))
    want, _ = exhaustive.topk_rows(weight, None, query, 11, None)
    value, got = exhaustive.topk_by_id(weight, None, query, 10, None, lambda rows: ids[rows])
    assert torch.equal(value, want[:, :10])
    if kernels == "native":  # PyTorch may round equal rows differently, depending on their position
        best = (query @ torch.randn(3, 65, generator=stream(0, "rows")).t()).argmax(dim=1)
        for b in range(9):
            assert got[b].tolist() == sorted(ids[which == best[b]].tolist())[:10]


def test_ties_are_those_of_the_first_ranking():
    """The same numbers in other orders: whether their sums tie depends on rounding."""
    numbers = torch.randn(65, generator=stream(0, "numbers"))
    generator = stream(0, "orders")
    weight = torch.stack([numbers[torch.randperm(65, generator=generator)] for _ in range(300)])
    query, ids = torch.ones(2, 65), torch.randperm(300, generator=stream(0, "ids"))
    score, rows = exhaustive.topk_rows(weight, None, query, 300, None)
    assert 2 < len(score[0].unique()) < 100
    for k in (1, 10, 50, 299):
        value, got = exhaustive.topk_by_id(weight, None, query, k, None, lambda rows: ids[rows])
        for b in range(2):
            named = zip((-score[b]).tolist(), ids[rows[b]].tolist(), strict=True)
            assert got[b].tolist() == [i for _, i in sorted(named)][:k]
            assert torch.equal(value[b], score[b, :k])
