"""Every native kernel against numpy in float64, at sizes that divide nothing."""

import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import Forked
from hypothesis import given
from hypothesis import strategies as st
from oracle.tables import top as slow_top

import tapas.native as native
from tapas.rng import stream

pytestmark = pytest.mark.skipif(
    native.state() != "in use on CPUs", reason=f"native kernels are {native.state()}"
)
NAN, INF = float("nan"), float("inf")
SIZES = [
    (1, 1, 1),
    (6, 16, 8),
    (7, 17, 3),
    (49, 5, 64),
    (101, 33, 50),
    (400, 130, 65),
    (13, 300, 7),
]


def draw(*shape, name):
    return torch.randn(*shape, generator=stream(0, name))


def scores(query, weight, offset):
    return query.double().numpy() @ weight.double().numpy().T + offset.double().numpy()


def without_targets(logit, ids, target):
    """-inf where class ids[k] is a target of the row."""
    mine = (target[:, :, None] == ids).any(dim=1).numpy()
    return np.where(mine, -np.inf, logit)


def log_sum_exp(logit, axis):
    peak = logit.max(axis=axis, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.log(np.exp(logit - np.where(np.isfinite(peak), peak, 0)).sum(axis=axis))
    return total + np.where(np.isfinite(peak), peak, 0).squeeze(axis)


def softmax(logit):
    return np.exp(logit - log_sum_exp(logit, 1)[:, None])


def gradients(weight, offset, query, ids=None, target=None, scale=None):
    """The log sum and its gradients of query, rows and offset; `target` may be None."""
    count = len(query)
    ids = torch.arange(len(weight)) if ids is None else ids
    log_sum, sums = native.log_sum(weight, offset, query, ids=ids, target=target)
    target = torch.full((count, 1), -1) if target is None else target
    scale = torch.ones(count) if scale is None else scale
    return log_sum, *native.gradients(weight, offset, query, ids, target, sums=sums, scale=scale)


def batch_score(weight, positions, bias, query, temperature):
    """The kernel, with the biases of `positions`."""
    stored = torch.zeros(len(weight), dtype=weight.dtype)
    stored[positions] = bias.to(weight.dtype)
    rows = native.PoolRows(weight, stored, positions)
    return native.batch_score(rows, query, temperature=temperature)


def mean_share(weight, positions, offset, query, ids, target, temperature):
    rows = native.PoolRows(weight, None, positions)
    return native.mean_share(rows, -offset, query, ids, target, temperature=temperature)


def a_case(num_rows, num_queries, dim, scale=1.0):
    weight, query = draw(num_rows, dim, name="w") * scale, draw(num_queries, dim, name="q")
    offset = draw(num_rows, name="offset")
    ids = torch.randperm(3 * num_rows, generator=stream(0, "ids"))[:num_rows].sort().values
    target = torch.randint(-1, 3 * num_rows, (num_queries, 2), generator=stream(0, "own"))
    return weight, query, offset, ids, target


@pytest.mark.parametrize("scale", [0.3, 60.0], ids=["near", "far"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_log_sum_equals_numpy(size, scale, threads):
    weight, query, offset, ids, target = a_case(*size, scale)
    log_sum, _ = native.log_sum(weight, offset, query, ids=ids, target=target)
    logit = without_targets(scores(query, weight, offset), ids, target)
    # float32 scores carry a relative error of 1e-7 times the terms they are summed from
    far = 1e-5 + 2e-6 * np.abs(logit[np.isfinite(logit)]).max(initial=0)
    np.testing.assert_allclose(log_sum.numpy(), log_sum_exp(logit, 1), atol=far, rtol=1e-6)
    alone, _ = native.log_sum(weight, None, query)
    want = log_sum_exp(scores(query, weight, offset * 0), 1)
    np.testing.assert_allclose(alone.numpy(), want, atol=far, rtol=1e-6)


@pytest.mark.parametrize("size", [*SIZES, (1000, 49, 16)], ids=str)
def test_the_gradients_of_the_log_sum_equal_numpy(size, threads):
    weight, query, offset, ids, target = a_case(*size)
    scale = draw(size[1], name="scale")
    _, *got = gradients(weight, offset, query, ids, target, scale)
    logit = without_targets(scores(query, weight, offset), ids, target)
    left = np.isfinite(logit).any(axis=1)
    share = np.where(left[:, None], softmax(np.where(left[:, None], logit, 0)), 0)
    share *= scale.double().numpy()[:, None]
    want = share @ weight.double().numpy(), share.T @ query.double().numpy(), share.sum(axis=0)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=2e-4, atol=2e-5 * np.abs(other).max())
    if not left.all():
        assert not got[0][torch.from_numpy(~left)].any()


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_mean_share_equals_numpy(size, temperature, threads, monkeypatch):
    table, query, offset, ids, target = a_case(*size)
    table = torch.cat([table, draw(5, size[2], name="more")])
    positions = torch.randperm(len(table), generator=stream(0, "at"))[: size[0]]
    logit = without_targets(scores(query, table[positions], offset) / temperature, ids, target)
    left = np.isfinite(logit).any(axis=1)
    want = np.where(left[:, None], softmax(np.where(left[:, None], logit, 0)), 0).mean(axis=0)
    for scratch in (0, 1 << 22):  # in blocks of 64 queries, and of 512
        monkeypatch.setattr("tapas.native.kernels.SCRATCH", scratch)
        got = mean_share(table, positions, offset, query, ids, target, temperature=temperature)
        np.testing.assert_allclose(got.numpy(), want, rtol=3e-5, atol=1e-9)


@pytest.mark.parametrize("scale", [0.3, 60.0], ids=["near", "far"])
@pytest.mark.parametrize("size", [*SIZES, (9, 1100, 64)], ids=str)
def test_the_batch_score_equals_numpy(size, scale, threads):
    table, query, bias, _, _ = a_case(*size, scale)
    positions = torch.randperm(len(table), generator=stream(0, "at"))
    got = batch_score(table, positions, bias, query, temperature=0.7)
    logit = scores(query, table[positions], bias) / 0.7
    far = 1e-5 + 2e-6 * np.abs(logit).max()
    np.testing.assert_allclose(got.numpy(), log_sum_exp(logit, 0), atol=far, rtol=1e-6)


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize(
    "size", [(23, 5, 3), (403, 1, 8), (400, 33, 8), (75, 8, 19), (61, 1030, 64)], ids=str
)
def test_topk_equals_a_sort(size, k, threads):
    """Integers, so that sums are exact and scores tie often."""
    weight = torch.randint(-2, 3, (size[0], size[2]), generator=stream(0, "w")).float()
    query = torch.randint(-2, 3, (size[1], size[2]), generator=stream(0, "q")).float()
    bias = torch.randint(-1, 2, (size[0],), generator=stream(0, "b")).float()
    exclude = torch.randint(-2, size[0], (size[1], 7), generator=stream(0, "e"))
    logit = scores(query, weight, bias).astype(np.float32)
    for banned in (None, exclude):
        score, rows = native.topk(weight, bias, query, k, banned)
        want_score, want = slow_top(logit, k, None if banned is None else banned.numpy())
        np.testing.assert_array_equal(rows.numpy(), want)
        np.testing.assert_array_equal(score.numpy(), want_score)
        log_sum = torch.empty(size[1])
        again = native.topk(weight, bias, query, k, banned, log_sum=log_sum)
        assert torch.equal(again[0], score)
        assert torch.equal(again[1], rows)
        np.testing.assert_allclose(log_sum.numpy(), log_sum_exp(logit, 1), rtol=1e-6, atol=1e-6)


@given(rows=st.integers(1, 99), dim=st.integers(1, 300), few=st.integers(1, 9), half=st.booleans())
def test_a_list_does_not_depend_on_how_many_are_made_together(rows, dim, few, half):
    """To the last bit: few queries have a loop of their own, and lists of a server are one each."""
    weight = draw(rows, dim, name="w").to(torch.bfloat16 if half else torch.float32)
    query, bias = draw(20, dim, name="q"), draw(rows, name="b")
    exclude = torch.randint(-3, rows, (20, 3), generator=stream(0, "e"))
    log_sum, some = torch.empty(20), torch.empty(few)
    want = native.topk(weight, bias, query, 7, exclude, log_sum=log_sum)
    got = native.topk(weight, bias, query[:few], 7, exclude[:few], log_sum=some)
    assert all(
        torch.equal(mine, all_of_them[:few]) for mine, all_of_them in zip(got, want, strict=True)
    )
    torch.testing.assert_close(some, log_sum[:few], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("queries", [2, 37])
def test_the_log_sum_beside_the_top_is_right_whatever_the_first_rows_score(queries, threads):
    """The first 12 rows, which set the reference, are far below or above the others, or -inf."""
    query, weight = draw(queries, 5, name="q"), draw(3000, 5, name="w")
    for shift, rest in ((-500.0, 0.0), (0.0, -500.0), (-INF, 0.0), (0.0, 0.0)):
        offset = torch.full((3000,), rest)
        offset[:12] = shift
        log_sum = torch.empty(queries)
        native.topk(weight, offset, query, 3, None, log_sum=log_sum)
        want = log_sum_exp(scores(query, weight, offset), 1)
        np.testing.assert_allclose(log_sum.numpy(), want, rtol=1e-6, atol=1e-5)
    weight[7] = NAN
    native.topk(weight, None, query, 3, None, log_sum=log_sum)
    assert log_sum.isnan().all()


@pytest.mark.parametrize("queries", [1, 19])
@pytest.mark.parametrize("row", [5, 100, 2998])
def test_scores_that_overflow_come_first(row, queries):
    """Products are fused, so that 1e38 * 8 - 1e38 * 8 is inf after the first, and never NaN."""
    query, weight = draw(queries, 2, name="q").abs() + 8.0, draw(3000, 2, name="w")
    weight[row] = torch.tensor([1e38, -1e38])
    score, rows = native.topk(weight, None, query, 2, None)
    assert rows[:, 0].tolist() == [row] * queries
    assert (score[:, 0] == INF).all()
    assert score[:, 1].isfinite().all()


def all_of_many_rows(more_bytes):
    weight, query = torch.zeros(200_000, 1), torch.zeros(64, 1)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        native.topk(weight, None, query, len(weight), None)
    except MemoryError as error:
        print(error)


def test_threads_that_run_out_of_memory_raise_instead_of_aborting():
    """Results take 154 MB, and what the threads collect before at least 205 MB."""
    done = Forked(200_000_000, work=all_of_many_rows).end()
    words = "there is not enough memory for the intermediate results of tapas_top\n"
    assert (done.returncode, done.stdout) == (0, words)


@given(
    rows=st.integers(1, 40), queries=st.integers(1, 40), dim=st.integers(1, 20), k=st.integers(1, 9)
)
def test_bfloat16_rows_are_read_exactly(rows, queries, dim, k):
    half = draw(rows, dim, name="w").bfloat16()
    query, bias = draw(queries, dim, name="q"), draw(rows, name="b").bfloat16().float()
    positions = torch.arange(rows)
    target = torch.full((queries, 1), -1)
    for weight in (half, half.float()):
        got = (
            *gradients(weight, bias, query, scale=query[:, 0]),
            batch_score(weight, positions, bias, query, temperature=1.0),
            mean_share(weight, positions, bias, query, positions, target, temperature=1.0),
            *native.topk(weight, bias, query, k, None),
        )
        if weight is half:
            want = got
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_answers_do_not_depend_on_the_number_of_threads():
    """For scores and top k; sums over rows do, as each thread has its own sum."""
    weight, query, offset, _, _ = a_case(4001, 70, 33)
    positions, found = torch.arange(4001), []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        found.append(
            (
                batch_score(weight, positions, offset, query, temperature=1.0),
                *native.topk(weight, offset, query, 11, None),
            )
        )
    torch.set_num_threads(1)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_ascending_scores_neither_overflow_nor_underflow():
    """Each score is far above all before it, so that every early reference is bad."""
    offset = torch.arange(0, 5000, 50.0)
    query, weight = torch.zeros(3, 2), torch.zeros(len(offset), 2)
    for raised in (offset, -offset, offset.flip(0) - 9000):
        log_sum, _, _, share = gradients(weight, raised, query)
        np.testing.assert_allclose(log_sum.numpy(), [float(raised.max())] * 3, rtol=1e-6)
        want = 3.0 * (raised == raised.max()).numpy()
        np.testing.assert_allclose(share.numpy(), want, rtol=1e-6, atol=1e-20)
    rising = torch.arange(0, 5000, 50.0)[:, None]
    ones = torch.ones(1, 1)
    score = batch_score(ones, torch.zeros(1).long(), torch.zeros(1), rising, temperature=1.0)
    np.testing.assert_allclose(score.numpy(), [4950.0], rtol=1e-6)


@pytest.mark.parametrize("depth", [-300.0, -65.0])
def test_targets_in_the_first_rows_are_not_used_as_reference(depth):
    """Twelve targets with score 0; relative to 0 the other exponentials underflow."""
    offset = torch.full((30,), depth)
    offset[:12], offset[12] = 0.0, depth - 23
    target = torch.arange(12)[None]
    rows, query = torch.zeros(30, 1), torch.zeros(1, 1)
    log_sum, _, _, share = gradients(rows, offset, query, target=target)
    np.testing.assert_allclose(log_sum.numpy(), [np.log(17) + depth], rtol=1e-6)
    want = np.where(np.arange(30) < 12, 0, 1 / 17)
    want[12] = np.exp(-23) / 17
    np.testing.assert_allclose(share.numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("height", [0.0, 44.0, 1e3, -1e5])
@pytest.mark.parametrize("size", [*SIZES, (1000, 49, 16)], ids=str)
def test_shares_add_up_to_one_for_any_scores(size, height, threads):
    """Multiples of 1/8, so that scores are exact; some are far above the first."""
    num_rows, num_queries, dim = size
    weight = torch.randint(-2, 3, (num_rows, dim), generator=stream(0, "w")).float()
    query = torch.randint(-2, 3, (num_queries, dim), generator=stream(0, "q")) / 8
    offset = torch.zeros(num_rows)
    offset[num_rows // 2 :] = height
    _, _, _, share = gradients(weight, offset, query)
    want = softmax(scores(query, weight, offset)).sum(axis=0)
    np.testing.assert_allclose(share.numpy(), want, rtol=2e-6, atol=1e-35)
    np.testing.assert_allclose(share.double().sum(), num_queries, rtol=1e-6)


@pytest.mark.parametrize("height", [88.75, 266.0, 443.0, -88.75])
@pytest.mark.parametrize("num_queries", [1, 17])
def test_lanes_without_a_query_have_no_effect(height, num_queries):
    """A score of 88.75 overflows, and infinity times 0 would be NaN."""
    weight, offset = torch.zeros(7, 2), torch.zeros(7)
    offset[3] = height
    _, _, rows, share = gradients(weight, offset, torch.ones(num_queries, 2))
    assert rows.isfinite().all()
    np.testing.assert_allclose(share.sum(), num_queries, rtol=1e-6)


@pytest.mark.parametrize("queries", [1, 5, 17])
@pytest.mark.parametrize("at", [0, 5, 40], ids="row {}".format)
def test_nan_in_a_row_is_visible_in_the_results(at, queries):
    weight, query = draw(41, 3, name="w"), draw(queries, 3, name="q")
    weight[at] = NAN
    positions, target = torch.arange(41), torch.full((queries, 1), -1)
    assert native.log_sum(weight, None, query)[0].isnan().all()
    bias = torch.zeros(41)
    score = batch_score(weight, positions, bias, query, temperature=1.0)
    assert score.isnan().nonzero().tolist() == [[at]]
    share = mean_share(weight, positions, bias, query, positions, target, temperature=1.0)
    assert share.isnan().any()
    value, rows = native.topk(weight, None, query, 2, None)
    assert rows[:, 0].tolist() == [at] * queries
    assert value[:, 0].isnan().all()
    assert not value[:, 1].isnan().any()


def test_empty_queries_and_rows():
    query, weight = torch.zeros(0, 3), draw(7, 3, name="w")
    assert native.log_sum(weight, None, query)[0].shape == (0,)
    assert native.topk(weight, None, query, 2, None)[1].shape == (0, 2)
    assert native.log_sum(weight[:0], None, torch.zeros(2, 3))[0].tolist() == [-INF, -INF]
    score, rows = native.topk(weight[:1], None, torch.ones(1, 3), 2, None)
    assert rows.tolist() == [[0, -1]]
    assert score[0, 1] == -INF


def test_millions_of_small_terms_add_up_beside_a_large_one():
    """Each block of them is too small to change a float32 sum of 1."""
    offset = torch.full((3_000_000,), -31 * np.log(2))
    offset[0] = 0.0
    log_sum, _ = native.log_sum(torch.zeros(len(offset), 1), offset, torch.zeros(1, 1))
    np.testing.assert_allclose(log_sum.numpy(), np.log1p(3e6 * 2.0**-31), rtol=1e-3)


@pytest.mark.parametrize("step", [0.0, 200.0], ids=["near", "far"])
def test_a_class_with_a_bias_of_minus_infinity_has_the_lowest_score(step):
    """Also beside rows whose scores need a second pass."""
    bias = torch.zeros(20)
    bias[7] = -INF
    query = step * torch.arange(33.0)[:, None]
    score = batch_score(torch.ones(20, 1), torch.arange(20), bias, query, temperature=1.0)
    assert score[7] == -INF
    want = np.log(33) if step == 0 else 32 * step
    np.testing.assert_allclose(np.delete(score.numpy(), 7), want, rtol=1e-6)
