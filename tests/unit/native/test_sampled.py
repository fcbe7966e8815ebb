"""The kernels of a sampled softmax against numpy in float64, at sizes that divide nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tapas.native as native
from tapas.errors import UsageError
from tapas.rng import philox, stream

pytestmark = pytest.mark.skipif(
    native.state() != "in use on CPUs", reason=f"native kernels are {native.state()}"
)
N = 700  # rows of the table


def draw(*shape, name):
    return torch.randn(*shape, generator=stream(0, name))


def log_sum_exp(logit, axis):
    peak = np.where(np.isfinite(top := logit.max(axis, initial=-np.inf)), top, 0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(logit - np.expand_dims(peak, axis)).sum(axis)) + peak


def a_case(num_kept, num_queries, num_targets, dim, *, scale=1.0, half=False):
    weight, bias = draw(N, dim, name="w") * scale, draw(N, name="b")
    if half:
        weight, bias = weight.bfloat16(), bias.bfloat16()
    target = torch.randint(-1, N, (num_queries, num_targets), generator=stream(0, "t"))
    ids = torch.randperm(N, generator=stream(0, "k"))[:num_kept].sort().values
    return weight, bias, draw(num_queries, dim, name="q"), target, ids, draw(num_kept, name="l")


def run(weight, bias, query, target, ids, log_q, **options):
    return native.sampled(
        weight, bias, query, kept_at=ids, kept_ids=ids, log_q=log_q, target_at=target,
        target=target, **{"with_terms": False, **options},
    )  # fmt: skip


def slow(weight, bias, query, target, ids, log_q):
    """Logits of targets (B, L), -inf for padding, and of kept classes (B, K), -inf for targets."""
    logit = query.double().numpy() @ weight.double().numpy().T + bias.double().numpy()
    positive = np.take_along_axis(logit, target.clamp(min=0).numpy(), axis=1)
    positive[target.numpy() < 0] = -np.inf
    kept = logit[:, ids.numpy()] - log_q.double().numpy()
    kept[(target.numpy()[:, :, None] == ids.numpy()).any(axis=1)] = -np.inf
    return positive, kept


SIZES = [(1, 1, 1, 1), (7, 17, 1, 3), (49, 5, 3, 64), (211, 33, 2, 97), (400, 130, 1, 65)]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("scale", [0.3, 60.0], ids=["near", "far"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_scores_sums_and_costs_equal_numpy(size, scale, half, threads):
    given = a_case(*size, scale=scale, half=half)
    weight, _, query, target, ids, _ = given
    counted = torch.rand(target.shape, generator=stream(0, "c")) < 0.7 if size[2] > 1 else None
    costs = native.Costs(
        torch.empty(target.shape), torch.empty(len(query)), torch.empty(target.shape)
    )
    found = run(*given, with_terms=True, counted=counted, costs=costs)
    positive, kept = slow(*given)
    close = {"rtol": 2e-6, "atol": 1e-4 * max(1, scale)}
    np.testing.assert_allclose(found.positive, positive, **close)
    np.testing.assert_allclose(found.log_sum, log_sum_exp(kept, 1), **close)
    assert torch.equal(found.kept_rows, weight[ids].float())
    real = target.reshape(-1) >= 0
    assert torch.equal(found.target_rows[real], weight[target.reshape(-1)[real]].float())
    some = np.isfinite(kept).any(axis=1)  # not only targets are kept
    share = np.exp(kept[some] - log_sum_exp(kept, 1)[some, None])
    got = (found.terms * found.sums[1]).T.double().numpy()
    near = 2e-4 if scale == 60.0 else 2e-5  # of a logit of some hundreds, 1e-7 of it
    np.testing.assert_allclose(got[some], share, atol=near)
    once = positive if counted is None else np.where(counted.numpy(), positive, -np.inf)
    partition = log_sum_exp(np.concatenate([once, kept], axis=1), 1)[:, None]
    want = partition - np.where(np.isfinite(positive), positive, partition)
    np.testing.assert_allclose(costs.cost, want, **close)
    rest = np.exp(log_sum_exp(kept, 1)[:, None] - partition)[:, 0]
    shown = some & (target.numpy() >= 0).any(axis=1)
    np.testing.assert_allclose(costs.rest.numpy()[shown], rest[shown], atol=near)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bits_do_not_depend_on_the_number_of_threads(size):
    given, found = a_case(*size), []
    before = torch.get_num_threads()
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        first = run(*given, with_terms=True)
        _, _, query, target, ids, _ = given
        again = run(*given)
        grads = native.gradients(
            first.kept_rows, first.offset, query, ids, target, sums=again.sums,
            scale=draw(len(query), name="s"),
        )  # fmt: skip
        found.append((*first[:6], first.terms, *grads))
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@given(
    num_kept=st.integers(0, 60),
    num_queries=st.integers(1, 40),
    num_targets=st.integers(1, 3),
    dim=st.integers(1, 40),
    biased=st.booleans(),
)
def test_gradients_of_targets_are_added_to_those_of_kept_classes(
    num_kept, num_queries, num_targets, dim, biased
):
    _, _, query, target, ids, _ = a_case(num_kept, num_queries, num_targets, dim)
    target = target % 90  # so that targets repeat, and are among the kept
    ids = ids % 97
    ids = ids.unique()
    size = len(ids) + target.numel()
    row_grad, offset_grad = draw(size, dim, name="rg"), draw(size, name="og")
    target_grad, rows = draw(*target.shape, name="tg"), draw(target.numel(), dim, name="rows")
    query_grad, scale = draw(num_queries, dim, name="qg"), draw(num_queries, name="qs")
    want = {int(c): (row_grad[k].double(), offset_grad[k].double()) for k, c in enumerate(ids)}
    for (q, place), c in np.ndenumerate(target.numpy()):
        if c >= 0:
            row, offset = want.get(int(c), (torch.zeros(dim).double(), torch.zeros(()).double()))
            g = target_grad[q, place].double()
            want[int(c)] = row + g * query[q].double(), offset + g
    pulled = (target_grad * (target >= 0))[:, :, None] * rows.view(*target.shape, dim)
    want_query = query_grad * scale[:, None] + pulled.sum(dim=1)
    found, weight, bias, square = native.target_gradients(
        target, target_grad, query, rows, ids, row_grad=row_grad,
        offset_grad=offset_grad if biased else None, num_classes=N, query_grad=query_grad,
        query_scale=scale,
    )  # fmt: skip
    assert sorted(found.tolist()) == sorted(want)
    total = 0.0
    for c, row, offset in zip(found.tolist(), weight, bias, strict=True):
        torch.testing.assert_close(row.double(), want[c][0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            offset.double(), want[c][1] if biased else offset.double() * 0, rtol=1e-5, atol=1e-5
        )
        total += float(row.double().square().sum() + offset.double().square())
    assert square == pytest.approx(total, rel=1e-6)
    torch.testing.assert_close(query_grad, want_query, rtol=1e-5, atol=1e-5)


def test_large_gradients_have_a_finite_square():
    """The square of 1e30 is beyond the range of a float."""
    row_grad = torch.full((3, 5), 1e30)
    *_, square = native.target_gradients(
        torch.full((2, 1), -1), torch.zeros(2, 1), torch.zeros(2, 5), torch.zeros(2, 5),
        torch.tensor([4]), row_grad=row_grad, offset_grad=None, num_classes=9,
    )  # fmt: skip
    assert square == pytest.approx(5e60)


@pytest.mark.parametrize("bad", ["high", "low", "order", "nan", "inf"])
def test_ids_out_of_range_and_queries_that_are_not_finite_are_reported(bad):
    weight, bias, query, target, ids, log_q = a_case(7, 5, 1, 3)
    if bad == "high":
        target[3, 0] = N
    elif bad == "low":
        ids[0] = -1
    elif bad == "order":
        ids[3] = ids[2]
    else:
        query[4, 1] = float(bad)
    with pytest.raises(native.BadValuesError):
        run(weight, bias, query, target, ids, log_q)


def test_a_kernel_checks_sizes_and_types_of_what_it_gets():
    weight, bias, query, target, ids, log_q = a_case(7, 5, 1, 3)
    for wrong in ({"bias": bias[:-1]}, {"log_q": log_q.double()}, {"query": query[:, :2]}):
        given = {"weight": weight, "bias": bias, "query": query, "target": target, "ids": ids}
        with pytest.raises(UsageError, match=r"^a native kernel got torch\.float.*; expected cont"):
            run(**{**given, "log_q": log_q, **wrong})


def test_the_numbers_of_a_key_are_those_of_the_authors_of_philox():
    """Philox4x32-10 for counter 0 and key 0, from the test vectors of Random123."""
    high, low = philox(0, 1)
    words = [int(high[0]) & 0xFFFFFFFF, int(high[0]) >> 32, int(low[0]) & 0xFFFFFFFF]
    assert [*words, int(low[0]) >> 32] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@given(size=st.integers(2, 300), keep=st.integers(1, 299), floor=st.sampled_from([0.0, 0.1, 1.0]))
def test_priority_keeps_what_a_sort_keeps(size, keep, floor):
    keep = min(keep, size - 1)
    weight, bias, query, target, ids, log_q = a_case(size, 5, 2, 7)
    rows = native.PoolRows(weight, bias, ids)
    noise = 1 - torch.rand(size, generator=stream(0, "noise"))
    kept, log_weight = native.priority(
        rows, log_q, query, ids, target, temperature=0.7, noise=noise, floor=floor, keep=keep
    )
    share = native.mean_share(rows, log_q, query, ids, target, temperature=0.7)
    g = ((1 - floor) * share + floor / size).clamp(min=1e-30)
    order = (g / noise).argsort(descending=True, stable=True)
    assert kept.tolist() == sorted(order[:keep].tolist())
    threshold = (g / noise)[order[keep]]
    want = (threshold / g[kept]).clamp(min=1).log()
    torch.testing.assert_close(log_weight, want, rtol=1e-5, atol=1e-6)
