"""Sampled logits and their gradients against autograd on a dense table."""

import pytest
import torch

from tapas import LocalTable, UsageError
from tapas.candidates import Candidates
from tapas.optim import SGD, Adagrad, LazyAdam, RowwiseAdagrad
from tapas.rng import stream
from tapas.tables.ranks import GlobalBatch

pytestmark = pytest.mark.usefixtures("kernels")
B, C, D = 5, 31, 3
KEPT = Candidates(
    torch.tensor([3, 4, 8, 15, 16, 23, 29]), torch.randn(7, generator=stream(0, "log_q"))
)
TARGETS = {
    "one": torch.tensor([[4], [7], [4], [29], [30]]),
    "several": torch.tensor([[4, 30, 8], [7, 7, 7], [5, 4, 4], [29, 3, 23], [2, 1, 6]]),
    "padded": torch.tensor([[4, -1, 8], [-1, -1, 7], [5, 5, -1], [-1, 3, -1], [-1, -1, -1]]),
}


def draw(*shape, name="draw"):
    return torch.randn(*shape, generator=stream(0, name))


@pytest.fixture(params=TARGETS)
def target(request):
    return TARGETS[request.param]


@pytest.fixture(params=["terms kept", "terms computed again"], autouse=True)
def least_work(request, monkeypatch):
    """As in large batches, and as in small ones."""
    least = 0 if request.param == "terms kept" else 1 << 60
    monkeypatch.setattr("tapas.tables.gradients.LEAST_WORK", least)


def a_table(row_optimizer=None, bias=True, **options):
    start = draw(C, name="bias") if bias else False
    return LocalTable(C, D, row_optimizer=row_optimizer, bias=start, **options)


def sampled(table, query, target, kept=KEPT):
    return table.sampled_logits(GlobalBatch.local(query, target), kept)


def dense(query, weight, bias, target, kept):
    """Both terms from the full (B, C) logits; targets among the candidates are left out."""
    logit = query @ weight.t() + bias
    positive = logit.gather(1, target.clamp(min=0)).masked_fill(target < 0, -torch.inf)
    candidate = logit[:, kept.ids] - kept.log_q
    own = (kept.ids == target[:, :, None]).any(dim=1)
    return positive, candidate.masked_fill(own, -torch.inf).logsumexp(dim=1)


def dense_of(table):
    """The queued gradients of all rows (C, D) and biases (C,)."""
    ids, weight, bias = table.gradients.summed()
    assert len(ids) == len(set(ids.tolist()))
    assert weight.dtype == bias.dtype == torch.float32
    return torch.zeros(C, D).index_copy_(0, ids, weight), torch.zeros(C).index_copy_(0, ids, bias)


def weighted(positive, log_sum):
    """A weighted sum with different weights; padding has weight 0."""
    positive = positive.masked_fill(positive.isneginf(), 0.0)
    pull = draw(*positive.shape, name="pull of own"), draw(len(log_sum), name="pull of kept")
    return (pull[0] * positive).sum() + (pull[1] * log_sum).sum()


def reference(table, target):
    """Both terms and the gradients of query, rows and biases, dense."""
    leaves = [draw(B, D, name="query"), *table.rows(torch.arange(C))]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    answers = dense(*leaves, target, KEPT)
    return answers, torch.autograd.grad(weighted(*answers), leaves)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_gradients_of_query_and_rows_equal_those_of_a_dense_table(target, bias, fused):
    """Gradients of rows move them at once or are queued, with their norm in anchor.grad."""
    table = a_table(SGD.fused(lr=1.0) if fused else None, bias)
    answers, (query_grad, *want) = reference(table, target)
    before = [part.clone() for part in table.rows(torch.arange(C))]
    query = draw(B, D, name="query").requires_grad_()
    got = sampled(table, query, target)
    torch.testing.assert_close(got, answers)
    weighted(*got).backward()
    torch.testing.assert_close(query.grad, query_grad)
    after = table.rows(torch.arange(C))
    if fused:
        found = before[0] - after[0], before[1] - after[1]
    else:
        found = dense_of(table)
        assert all(map(torch.equal, after, before))
        touched = set(KEPT.ids.tolist()) | {t for t in target.flatten().tolist() if t >= 0}
        assert set(table.gradients.summed().ids.tolist()) == touched
        # one without biases has no gradients of biases
        norm = torch.cat([grad.flatten() for grad in want[: 1 + bias]]).norm()
        torch.testing.assert_close(table.gradients.anchor.grad, norm[None])
        assert all(p.grad is None for p in (table._parameters["weight"], table._parameters["bias"]))
    torch.testing.assert_close(found[0], want[0])
    if bias:
        torch.testing.assert_close(found[1], want[1])
    elif fused:
        assert not after[1].any()


def test_gradients_of_bfloat16_rows_are_queued_in_float32():
    """`dense_of` checks their dtype; they are summed before any rounding."""
    table = a_table(dtype=torch.bfloat16)
    _, (_, *grads) = reference(table, TARGETS["one"])
    weighted(*sampled(table, draw(B, D, name="query"), TARGETS["one"])).backward()
    torch.testing.assert_close(dense_of(table), tuple(grads))


@pytest.mark.parametrize("kind", [SGD, Adagrad, RowwiseAdagrad, LazyAdam])
def test_an_optimizer_moves_rows_as_its_fused_update(kind):
    """Bit by bit, also with three calls in one backward pass."""
    fused, given = a_table(kind.fused(lr=0.3)), a_table()
    optimizer = kind(given, lr=0.3)
    for table in (fused, given):
        calls = [sampled(table, draw(B, D, name=f"query {n}"), TARGETS["padded"]) for n in range(3)]
        sum(weighted(*answers) for answers in calls).backward()
    optimizer.step()
    found, want = ({**t.row_tensors(), **t.gradients.state} for t in (given, fused))
    assert int(found.pop("step")) == 1
    assert found.keys() == want.keys()
    for name, part in want.items():
        assert torch.equal(found[name], part), name


@pytest.mark.parametrize("height", [1e3, -1e5])
def test_shares_of_the_kept_sum_add_up_to_one_for_any_logits(height):
    """The gradients of biases are the shares."""
    table = LocalTable(C, D, bias=torch.full((C,), height) + torch.arange(C) / 8)
    _, log_sum = sampled(table, draw(B, D, name="query"), TARGETS["several"])
    log_sum.sum().backward()
    total = table.gradients.summed().bias.double().sum()
    torch.testing.assert_close(total, torch.tensor(B).double(), rtol=1e-6, atol=0.0)


def test_padding_never_touches_row_zero():
    """Adam's moments and weight decay would move it even with a gradient of 0."""
    table = a_table(LazyAdam.fused(lr=0.1, weight_decay=0.1))
    table.update(torch.arange(C), draw(C, D), draw(C))
    before = {name: value.clone() for name, value in table.row_tensors().items()}
    query = draw(B, D, name="query").requires_grad_()
    weighted(*sampled(table, query, TARGETS["padded"])).backward()
    for name, value in table.row_tensors().items():
        assert torch.equal(value[0], before[name][0]), name
        assert not torch.equal(value[4], before[name][4]), name
    assert bool(query.grad.isfinite().all())


def test_padding_sends_no_gradient_to_the_query():
    target = torch.full((B, 2), -1)
    query = draw(B, D, name="query").requires_grad_()
    positive, log_sum = sampled(a_table(), query, target)
    assert bool(positive.isneginf().all())
    (positive.masked_fill(target < 0, 0.0).sum() + 0 * log_sum.sum()).backward()
    assert torch.equal(query.grad, torch.zeros(B, D))


def test_an_example_whose_targets_are_all_kept_classes_has_an_empty_sum():
    """Its log is -inf, without a gradient and without NaN."""
    table = a_table(SGD.fused(lr=1.0))
    kept = Candidates(torch.tensor([4, 8]), torch.zeros(2))
    target = torch.tensor([[4, 8], [8, 4], [4, 4], [4, -1], [1, 2]])
    query = draw(B, D, name="query").requires_grad_()
    _, log_sum = sampled(table, query, target, kept)
    assert log_sum.isneginf().tolist() == [True, True, False, False, False]
    before = table.weight.clone()
    log_sum.exp().sum().backward()
    assert torch.equal(query.grad[:2], torch.zeros(2, D))
    assert bool(query.grad[2:].all())
    assert bool(table.weight.isfinite().all())
    assert torch.equal((table.weight != before).any(dim=1).nonzero()[:, 0], torch.tensor([4, 8]))


def test_rows_move_if_no_query_requires_a_gradient_but_not_in_no_grad(target):
    table = a_table(SGD.fused(lr=1.0))
    before = table.weight.clone()
    with torch.no_grad():
        answers = sampled(table, draw(B, D, name="query"), target)
    assert not any(answer.requires_grad for answer in answers)
    assert torch.equal(table.weight, before)
    weighted(*sampled(table, draw(B, D, name="query"), target)).backward()
    assert not torch.equal(table.weight[KEPT.ids], before[KEPT.ids])


def test_a_gradient_that_is_not_finite_is_an_error_in_backward_and_moves_nothing():
    table = a_table(SGD.fused())
    before = table.weight.clone()
    positive, _ = sampled(table, draw(B, D, name="query"), TARGETS["one"])
    with pytest.raises(
        UsageError, match=r"^the gradient of the class rows holds NaN or inf; no row"
    ):
        (positive.sum() * torch.inf).backward()
    assert torch.equal(table.weight, before)


def test_a_gradient_that_is_lazily_negated_keeps_its_sign(target):
    """torch negates imaginary parts of conjugates only when they are read."""
    found = []
    for grad in (torch.tensor(1j).conj().imag, torch.tensor(-1.0)):
        table, query = a_table(), draw(B, D, name="query").requires_grad_()
        loss = table.sampled_costs(GlobalBatch.local(query, target), KEPT, factor=0.5)
        loss.backward(grad)
        found.append([query.grad, *dense_of(table)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_graph_that_is_retained_gives_the_same_gradients_again(target):
    table, query = a_table(), draw(B, D, name="query").requires_grad_()
    loss = table.sampled_costs(GlobalBatch.local(query, target), KEPT).sum()
    loss.backward(retain_graph=True)
    first = [query.grad.clone(), *dense_of(table)]
    loss.backward()
    for once, twice in zip(first, [query.grad, *dense_of(table)], strict=True):
        torch.testing.assert_close(2 * once, twice)


def test_padding_alone_has_no_gradient():
    """Also if the caller says itself that it does not count."""
    target = torch.tensor([[4], [-1], [4], [29], [-1]])
    table, query = a_table(), draw(B, D, name="query").requires_grad_()
    batch = GlobalBatch.local(query, target)
    table.sampled_costs(batch, KEPT, counted=target >= 0).sum().backward()
    assert query.grad.abs().sum(dim=1).bool().tolist() == [True, False, True, True, False]
