"""Row optimizers against loops in float64 and against torch.optim on sparse gradients."""

import pytest
import torch
from oracle.tables import SlowRows

from tapas import SGD, Adagrad, LazyAdam, LocalTable, RowwiseAdagrad, UsageError, stream

C, D, N, STEPS = 11, 3, 7, 6

ALL = [
    SGD(lr=0.3),
    SGD(lr=0.3, weight_decay=0.2),
    Adagrad(lr=0.3),
    Adagrad(lr=0.3, initial_sum=0.5, eps=0.01, weight_decay=0.2),
    RowwiseAdagrad(lr=0.3),
    RowwiseAdagrad(lr=0.3, initial_sum=0.5, eps=0.01, weight_decay=0.2),
    LazyAdam(lr=0.1),
    LazyAdam(lr=0.1, beta1=0.5, beta2=0.7, eps=0.01, weight_decay=0.2),
]


def batches():
    """Ids that repeat and leave others out for several steps, with gradients of all sizes."""
    for step in range(STEPS):
        generator = stream(0, "batch", step)
        ids = torch.randint(0, C - 2, (N,), generator=generator)  # the last two are never touched
        ids[1] = ids[0]
        size = 10.0 ** torch.randint(-3, 2, (N, 1), generator=generator)
        yield (
            ids,
            size * torch.randn(N, D, generator=generator),
            torch.randn(N, generator=generator),
        )


def a_table(optimizer):
    return LocalTable(
        C, D, row_optimizer=optimizer, bias=torch.randn(C, generator=stream(0, "bias"))
    )


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_every_step_is_that_of_the_loops(optimizer):
    """Weight decay falls on touched rows when they are touched, and never on a bias."""
    table = a_table(optimizer)
    weight = SlowRows(table.weight, optimizer)
    bias = SlowRows(table.bias[:, None], optimizer, decays=False)
    for ids, weight_grad, bias_grad in batches():
        table.update(ids, weight_grad, bias_grad)
        weight.update(ids.tolist(), weight_grad.tolist())
        bias.update(ids.tolist(), bias_grad[:, None].tolist())
        torch.testing.assert_close(table.weight, torch.tensor(weight.rows).float())
        torch.testing.assert_close(table.bias, torch.tensor(bias.rows[:, 0]).float())


@pytest.mark.parametrize(
    ("optimizer", "reference"),
    [
        (SGD(lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
        (
            Adagrad(lr=0.3, initial_sum=0.5, eps=1e-5),
            lambda p: torch.optim.Adagrad(p, lr=0.3, initial_accumulator_value=0.5, eps=1e-5),
        ),
        (
            LazyAdam(lr=0.1, beta1=0.8, beta2=0.95, eps=1e-5),
            lambda p: torch.optim.SparseAdam(p, lr=0.1, betas=(0.8, 0.95), eps=1e-5),
        ),
        (LazyAdam(), lambda p: torch.optim.SparseAdam(p)),
    ],
    ids=["SGD", "Adagrad", "LazyAdam", "LazyAdam's defaults"],
)
def test_every_step_is_that_of_torch_optim_on_sparse_gradients(optimizer, reference):
    table = a_table(optimizer)
    rows = [torch.nn.Parameter(part.clone()) for part in (table.weight, table.bias)]
    reference = reference(rows)
    for ids, *grads in batches():
        table.update(ids, *grads)
        for part, grad in zip(rows, grads, strict=True):
            part.grad = torch.sparse_coo_tensor(
                ids[None], grad, part.shape, is_coalesced=False, check_invariants=True
            )
        reference.step()
        torch.testing.assert_close(table.weight, rows[0].detach())
        torch.testing.assert_close(table.bias, rows[1].detach())


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_an_untouched_row_neither_moves_nor_decays_nor_ages(optimizer):
    table = a_table(optimizer)
    before = {name: value.clone() for name, value in table.named_buffers()}
    for batch in batches():
        table.update(*batch)
    for name, value in table.named_buffers():
        assert torch.equal(value[C - 2 :], before[name][C - 2 :]), name
        assert not torch.equal(value, before[name])


@pytest.mark.parametrize("optimizer", [o for o in ALL if o.weight_decay], ids=repr)
def test_a_touched_row_decays_even_without_a_gradient_but_its_bias_does_not(optimizer):
    table = a_table(optimizer)
    weight, bias = table.weight.clone(), table.bias.clone()
    table.update(torch.tensor([4]), torch.zeros(1, D), torch.zeros(1))
    assert bool((table.weight[4].abs() < weight[4].abs()).all())
    assert torch.equal(table.bias, bias)


def test_the_state_of_rowwise_adagrad_is_one_number_for_each_row():
    names = {name: value.shape for name, value in a_table(RowwiseAdagrad()).named_buffers()}
    assert names == {"weight": (C, D), "weight_sum": (C, 1), "bias": (C,), "bias_sum": (C, 1)}
    wide = {name: value.shape for name, value in a_table(Adagrad()).named_buffers()}
    assert wide == names | {"weight_sum": (C, D)}


def test_a_row_of_zero_gradients_does_not_divide_by_zero():
    for optimizer in (Adagrad(initial_sum=0.0), RowwiseAdagrad(initial_sum=0.0), LazyAdam()):
        table = a_table(optimizer)
        before = table.weight.clone()
        table.update(torch.tensor([4]), torch.zeros(1, D), torch.zeros(1))
        assert torch.equal(table.weight, before)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: SGD(lr=0), "SGD.lr must be a finite number above 0, got 0."),
        (lambda: SGD(lr=torch.inf), "SGD.lr must be a finite number above 0, got inf."),
        (
            lambda: SGD(weight_decay=-0.1),
            "SGD.weight_decay must be a finite number of at least 0, got -0.1.",
        ),
        (lambda: Adagrad(lr=torch.nan), "Adagrad.lr must be a finite number above 0, got nan."),
        (
            lambda: Adagrad(initial_sum=-1.0),
            "Adagrad.initial_sum must be a finite number of at least 0, got -1.0.",
        ),
        (
            lambda: RowwiseAdagrad(eps=0.0),
            "RowwiseAdagrad.eps must be a finite number above 0, got 0.0.",
        ),
        (
            lambda: RowwiseAdagrad(weight_decay=torch.inf),
            "RowwiseAdagrad.weight_decay must be a finite number of at least 0, got inf.",
        ),
        (lambda: LazyAdam(lr=-1), "LazyAdam.lr must be a finite number above 0, got -1."),
        (lambda: LazyAdam(eps=0.0), "LazyAdam.eps must be a finite number above 0, got 0.0."),
        (lambda: LazyAdam(beta1=1.0), "LazyAdam.beta1 must be in [0, 1), got 1.0."),
        (lambda: LazyAdam(beta2=-0.1), "LazyAdam.beta2 must be in [0, 1), got -0.1."),
    ],
)
def test_a_bad_number_is_told_its_name_and_bound(build, words):
    with pytest.raises(UsageError) as error:
        build()
    assert str(error.value) == words
