"""One node from the query to the sampled loss, against autograd on a dense table."""

import pytest
import torch

from tapas import SGD, Candidates, LazyAdam, LocalTable, UsageError, stream

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


def a_table(row_optimizer=None, bias=True, **options):
    start = draw(C, name="bias") if bias else False
    return LocalTable(C, D, row_optimizer=row_optimizer, bias=start, **options)


def dense(query, weight, bias, target, kept):
    """Both answers from the full (B, C) logits; candidates that are an example's own are out."""
    logit = query @ weight.t() + bias
    positive = logit.gather(1, target.clamp(min=0)).masked_fill(target < 0, -torch.inf)
    candidate = logit[:, kept.ids] - kept.log_q
    own = (kept.ids == target[:, :, None]).any(dim=1)
    return positive, candidate.masked_fill(own, -torch.inf).logsumexp(dim=1)


def weighted(positive, log_sum):
    """A sum in which every entry pulls differently; padding has no pull."""
    positive = positive.masked_fill(positive.isneginf(), 0.0)
    pull = draw(*positive.shape, name="pull of own"), draw(len(log_sum), name="pull of kept")
    return (pull[0] * positive).sum() + (pull[1] * log_sum).sum()


def reference(table, target, kept=KEPT):
    """The answers and the gradients of query, rows and biases, all dense."""
    leaves = [draw(B, D, name="query"), *table.rows(torch.arange(C))]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    answers = dense(*leaves, target, kept)
    return answers, torch.autograd.grad(weighted(*answers), leaves)


@pytest.mark.parametrize("bias", [True, False])
def test_row_optimizers_get_the_gradient_of_the_dense_table(target, bias):
    table = a_table(SGD(lr=1.0), bias)
    answers, (query_grad, weight_grad, bias_grad) = reference(table, target)
    before = [part.clone() for part in table.rows(torch.arange(C))]
    query = draw(B, D, name="query").requires_grad_()
    got = table.sampled_logits(query, target, KEPT)
    torch.testing.assert_close(got, answers)
    weighted(*got).backward()
    torch.testing.assert_close(query.grad, query_grad)
    after = table.rows(torch.arange(C))
    torch.testing.assert_close(before[0] - after[0], weight_grad)
    torch.testing.assert_close(before[1] - after[1], bias_grad if bias else torch.zeros(C))


@pytest.mark.parametrize("bias", [True, False])
def test_parameters_get_the_gradient_of_the_dense_table_as_a_sparse_one(target, bias):
    table = a_table(None, bias)
    answers, (query_grad, weight_grad, bias_grad) = reference(table, target)
    query = draw(B, D, name="query").requires_grad_()
    got = table.sampled_logits(query, target, KEPT)
    torch.testing.assert_close(got, answers)
    weighted(*got).backward()
    torch.testing.assert_close(query.grad, query_grad)
    assert table.weight.grad.is_sparse
    torch.testing.assert_close(table.weight.grad.to_dense(), weight_grad)
    touched = set(KEPT.ids.tolist()) | {t for t in target.flatten().tolist() if t >= 0}
    assert set(table.weight.grad.coalesce().indices()[0].tolist()) == touched
    if bias:
        assert table.bias.grad.is_sparse
        torch.testing.assert_close(table.bias.grad.to_dense(), bias_grad)
    else:
        assert table.bias.grad is None


def test_sparse_gradients_add_up_over_several_backward_passes(target):
    table = a_table()
    for _ in range(2):
        weighted(*table.sampled_logits(draw(B, D, name="query"), target, KEPT)).backward()
    _, (_, weight_grad, bias_grad) = reference(table, target)
    torch.testing.assert_close(table.weight.grad.to_dense(), 2 * weight_grad)
    torch.testing.assert_close(table.bias.grad.to_dense(), 2 * bias_grad)


def test_sparse_gradients_are_of_the_dtype_of_their_rows():
    table = a_table(dtype=torch.bfloat16)
    weighted(*table.sampled_logits(draw(B, D, name="query"), TARGETS["one"], KEPT)).backward()
    assert table.weight.grad.dtype == table.bias.grad.dtype == torch.bfloat16


def test_torch_optim_moves_parameters_as_the_row_optimizer_moves_rows(target):
    mine, parameters = a_table(SGD(lr=0.3)), a_table()
    optimizer = torch.optim.SGD(parameters.parameters(), lr=0.3)
    for table in (mine, parameters):
        weighted(*table.sampled_logits(draw(B, D, name="query"), target, KEPT)).backward()
    optimizer.step()
    for row, parameter in zip(
        mine.rows(torch.arange(C)), parameters.rows(torch.arange(C)), strict=True
    ):
        torch.testing.assert_close(row, parameter)


def test_padding_never_touches_row_zero():
    """Adam with moments of its own, and weight decay, would move it even without a gradient."""
    table = a_table(LazyAdam(lr=0.1, weight_decay=0.1))
    table.update(torch.arange(C), draw(C, D), draw(C))
    before = {name: value.clone() for name, value in table.named_buffers()}
    query = draw(B, D, name="query").requires_grad_()
    weighted(*table.sampled_logits(query, TARGETS["padded"], KEPT)).backward()
    for name, value in table.named_buffers():
        assert torch.equal(value[0], before[name][0]), name
        assert not torch.equal(value[4], before[name][4]), name
    assert bool(query.grad.isfinite().all())


def test_a_padded_entry_sends_no_gradient_into_its_query():
    target = torch.full((B, 2), -1)
    query = draw(B, D, name="query").requires_grad_()
    positive, log_sum = a_table().sampled_logits(query, target, KEPT)
    assert bool(positive.isneginf().all())
    (positive.masked_fill(target < 0, 0.0).sum() + 0 * log_sum.sum()).backward()
    assert torch.equal(query.grad, torch.zeros(B, D))


def test_an_example_that_owns_all_that_was_kept_has_nothing_left_to_sum():
    """Its log is -inf and no gradient, NaN least of all, flows from it."""
    table = a_table(SGD(lr=1.0))
    kept = Candidates(torch.tensor([4, 8]), torch.zeros(2))
    target = torch.tensor([[4, 8], [8, 4], [4, 4], [4, -1], [1, 2]])
    query = draw(B, D, name="query").requires_grad_()
    _, log_sum = table.sampled_logits(query, target, kept)
    assert log_sum.isneginf().tolist() == [True, True, False, False, False]
    before = table.weight.clone()
    log_sum.exp().sum().backward()
    assert torch.equal(query.grad[:2], torch.zeros(2, D))
    assert bool(query.grad[2:].all())
    assert bool(table.weight.isfinite().all())
    assert torch.equal((table.weight != before).any(dim=1).nonzero()[:, 0], torch.tensor([4, 8]))


def test_rows_move_although_no_query_wants_a_gradient(target):
    table = a_table(SGD(lr=1.0))
    before = table.weight.clone()
    weighted(*table.sampled_logits(draw(B, D, name="query"), target, KEPT)).backward()
    assert not torch.equal(table.weight[KEPT.ids], before[KEPT.ids])


def test_without_gradients_nothing_moves(target):
    table = a_table(SGD(lr=1.0))
    before = table.weight.clone()
    with torch.no_grad():
        positive, log_sum = table.sampled_logits(draw(B, D, name="query"), target, KEPT)
    assert not positive.requires_grad
    assert not log_sum.requires_grad
    assert torch.equal(table.weight, before)


def test_a_gradient_that_is_not_finite_is_told_in_backward_and_moves_nothing():
    table = a_table(SGD())
    before = table.weight.clone()
    positive, _ = table.sampled_logits(draw(B, D, name="query"), TARGETS["one"], KEPT)
    with pytest.raises(UsageError, match="the gradient of the class rows holds NaN or inf"):
        (positive.sum() * torch.inf).backward()
    assert torch.equal(table.weight, before)
