"""The kernels of a sampled softmax against numpy in float64, at sizes that divide nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tapas.native as native
from tapas.errors import UsageError
from tapas.native.kernels import PARTS
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
    weight, _, _, target, ids, _ = given
    counted = torch.rand(target.shape, generator=stream(0, "c")) < 0.7 if size[2] > 1 else None
    cost, loss = torch.empty(target.shape), torch.empty(())
    part = run(
        *given, with_terms=True, counted=counted, cost=cost, loss=loss, factor=0.3
    ).part  # fmt: skip
    positive, kept = slow(*given)
    close = {"rtol": 2e-6, "atol": 1e-4 * max(1, scale)}
    np.testing.assert_allclose(part("positive"), positive, **close)
    np.testing.assert_allclose(part("log_sum"), log_sum_exp(kept, 1), **close)
    assert torch.equal(part("kept_rows"), weight[ids].float())
    real = target.reshape(-1) >= 0
    assert torch.equal(part("target_rows")[real], weight[target.reshape(-1)[real]].float())
    some = np.isfinite(kept).any(axis=1)  # not only targets are kept
    share = np.exp(kept[some] - log_sum_exp(kept, 1)[some, None])
    got = (part("terms") * part("inverse")).T.double().numpy()
    near = 2e-4 if scale == 60.0 else 2e-5  # of a logit of some hundreds, 1e-7 of it
    np.testing.assert_allclose(got[some], share, atol=near)
    once = positive if counted is None else np.where(counted.numpy(), positive, -np.inf)
    partition = log_sum_exp(np.concatenate([once, kept], axis=1), 1)[:, None]
    want = partition - np.where(np.isfinite(positive), positive, partition)
    np.testing.assert_allclose(cost, want, **close)
    assert float(loss) == pytest.approx(0.3 * float(cost.double().sum()), rel=1e-6)
    rest = np.exp(log_sum_exp(kept, 1)[:, None] - partition)[:, 0]
    shown = some & (target.numpy() >= 0).any(axis=1)
    np.testing.assert_allclose(part("rest").numpy()[shown], rest[shown], atol=near)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bits_do_not_depend_on_the_number_of_threads(size):
    given, found = a_case(*size), []
    before = torch.get_num_threads()
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        _, _, query, target, ids, _ = given
        for terms in (False, True):
            first = run(*given, with_terms=terms)
            grads = native.sample_gradients(
                first, query, target, ids, result=native.LOGITS, biased=True, num_classes=N,
                grad=draw(*target.shape, name="g"), log_sum_grad=draw(len(query), name="s"),
            )  # fmt: skip
            parts = [first.part(name) for name in PARTS[: 10 if terms else 9]]
            # the matrix products with terms are those of torch, which may depend on it
            found.append((*parts, *(() if terms else grads[:4])))
    torch.set_num_threads(before)
    for place, other in enumerate(found):
        assert all(torch.equal(a, b) for a, b in zip(found[place % 2], other, strict=True))


def slow_gradients(given, result, grad, log_sum_grad, factor):
    """Gradients of queries, and of rows and offsets by class, by torch in float64."""
    weight, bias, query, target, ids, log_q = (
        x.double() if x.is_floating_point() else x for x in given
    )
    leaves = [x.requires_grad_() for x in (weight, bias, query)]
    real = target >= 0
    positive = (weight[target.clamp(min=0)] * query[:, None]).sum(2) + bias[target.clamp(min=0)]
    kept = query @ weight[ids].t() + bias[ids] - log_q
    kept = kept.masked_fill((target[:, :, None] == ids).any(dim=1), -torch.inf)
    some = kept.isfinite().any(dim=1)  # else the log of the sum is -inf, without a gradient
    log_sum = torch.full((len(query),), -torch.inf, dtype=torch.float64)
    log_sum[some] = kept[some].logsumexp(dim=1)
    if result == native.LOGITS:
        total = (positive * grad)[real].sum() + (log_sum * log_sum_grad)[some].sum()
    else:
        every = torch.cat([positive.masked_fill(~real, -torch.inf), log_sum[:, None]], dim=1)
        cost = (every.logsumexp(dim=1)[:, None] - positive)[real]
        total = (cost * (grad[real] if result == native.COSTS else grad * factor)).sum()
    return torch.autograd.grad(total, [leaves[2], leaves[0], leaves[1]], allow_unused=True)


@given(
    num_kept=st.integers(1, 60),
    num_queries=st.integers(1, 40),
    num_targets=st.integers(1, 3),
    dim=st.integers(1, 40),
    biased=st.booleans(),
    terms=st.booleans(),
    result=st.sampled_from([native.LOSS, native.COSTS, native.LOGITS]),
)
def test_gradients_equal_those_of_torch(
    num_kept, num_queries, num_targets, dim, biased, terms, result
):
    if result == native.LOSS:
        num_targets = 1
    weight, bias, query, target, ids, log_q = a_case(num_kept, num_queries, num_targets, dim)
    target = target % 90  # so that targets repeat, and are among the kept
    target[::3, 0] = -1
    ids = (ids % 97).unique()
    case = weight, bias, query, target, ids, log_q[: len(ids)]
    # a target that is listed twice counts twice, as in `slow_gradients`
    given = run(*case, with_terms=terms)
    grad = draw(*target.shape, name="g") if result != native.LOSS else torch.tensor(0.7)
    log_sum_grad = draw(num_queries, name="s") if result == native.LOGITS else None
    query_grad, found, row_grad, offset_grad, square = native.sample_gradients(
        given, query, target, ids, result=result, grad=grad, log_sum_grad=log_sum_grad,
        factor=0.3, biased=biased, num_classes=N,
    )  # fmt: skip
    want_query, want_rows, want_biases = slow_gradients(case, result, grad, log_sum_grad, 0.3)
    close = {"rtol": 1e-4, "atol": 1e-5, "check_dtype": False}
    torch.testing.assert_close(query_grad, want_query, **close)
    assert len(set(found.tolist())) == len(found)
    assert set(found.tolist()) == {*ids.tolist(), *target[target >= 0].tolist()}
    torch.testing.assert_close(row_grad, want_rows[found], **close)
    torch.testing.assert_close(offset_grad, want_biases[found] * biased, **close)
    total = float(row_grad.double().square().sum() + offset_grad.double().square().sum())
    assert square == pytest.approx(total, rel=1e-6)


def test_large_gradients_have_a_finite_square():
    """The square of 1e30 is beyond the range of a float."""
    weight, bias, query, target, ids, log_q = a_case(1, 1, 1, 5)
    given = run(weight, bias, query, target, ids, log_q)
    *_, square = native.sample_gradients(
        given, query, torch.full((1, 1), -1), ids, result=native.LOGITS, biased=False,
        grad=torch.zeros(1, 1), log_sum_grad=torch.tensor([1e30]), num_classes=N,
    )  # fmt: skip
    assert square == pytest.approx(1e60 * float(query.double().square().sum()), rel=1e-6)


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
    words = "a query holds NaN or inf" if bad in ("nan", "inf") else f"are not below {N}, or do"
    with pytest.raises(native.BadValuesError, match=words):
        run(weight, bias, query, target, ids, log_q)


def test_a_kernel_checks_sizes_and_types_of_what_it_gets():
    weight, bias, query, target, ids, log_q = a_case(7, 5, 1, 3)
    for wrong in ({"bias": bias[:-1]}, {"log_q": log_q.double()}, {"query": query[:, :2]}):
        given = {"weight": weight, "bias": bias, "query": query, "target": target, "ids": ids}
        with pytest.raises(UsageError, match=r"^a native kernel got torch\.float.*; expected cont"):
            run(**{**given, "log_q": log_q, **wrong})


def test_the_numbers_of_a_key_are_those_of_the_authors_of_philox():
    """Philox4x32-10 for counter 0 and key 0, from the test vectors of Random123."""
    words = [
        half for number in philox(0, 2).tolist() for half in (number & 0xFFFFFFFF, number >> 32)
    ]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


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


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [97, 128])
def test_large_pools_are_scored_in_bfloat16_where_the_cpu_can(dim, half):
    """All classes but one are kept, and all weigh t / g: that gives g up to a factor."""
    weight, bias, query, target, ids, log_q = a_case(699, 75, 2, dim, scale=0.1, half=half)
    noise = torch.full((699,), 1e-6)
    kept, log_weight = native.priority(
        native.PoolRows(weight, bias, ids), log_q, query, ids, target,
        temperature=1.3, noise=noise, floor=0.1, keep=698,
    )  # fmt: skip
    if native.multiplies_bfloat16():
        weight, query = weight.bfloat16().float(), query.bfloat16().float()
    rows = native.PoolRows(weight.float(), bias.float(), ids)
    share = native.mean_share(rows, log_q, query, ids, target, temperature=1.3)
    g = (0.9 * share + 0.1 / 699)[kept]
    assert sorted({*range(699)} - {*kept.tolist()}) == [int(share.argmin())]
    torch.testing.assert_close(
        log_weight - log_weight[0], g[0].log() - g.log(), rtol=1e-4, atol=2e-5
    )
