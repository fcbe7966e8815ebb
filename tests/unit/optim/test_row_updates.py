"""Formulas of row updates against loops in float64 and torch.optim on sparse gradients."""

from dataclasses import asdict

import pytest
import torch
from oracle.tables import SlowRows

from tapas import LocalTable, UsageError, optim
from tapas.optim import SGD, Adagrad, LazyAdam, RowwiseAdagrad
from tapas.rng import stream

C, D, N, STEPS = 11, 3, 7, 6

ALL = [
    SGD.fused(lr=0.3),
    SGD.fused(lr=0.3, weight_decay=0.2),
    Adagrad.fused(lr=0.3),
    Adagrad.fused(lr=0.3, initial_sum=0.5, eps=0.01, weight_decay=0.2),
    RowwiseAdagrad.fused(lr=0.3),
    RowwiseAdagrad.fused(lr=0.3, initial_sum=0.5, eps=0.01, weight_decay=0.2),
    LazyAdam.fused(lr=0.1),
    LazyAdam.fused(lr=0.1, betas=(0.5, 0.7), eps=0.01, weight_decay=0.2),
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
        (SGD.fused(lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
        (
            Adagrad.fused(lr=0.3, initial_sum=0.5, eps=1e-5),
            lambda p: torch.optim.Adagrad(p, lr=0.3, initial_accumulator_value=0.5, eps=1e-5),
        ),
        (
            LazyAdam.fused(lr=0.1, betas=(0.8, 0.95), eps=1e-5),
            lambda p: torch.optim.SparseAdam(p, lr=0.1, betas=(0.8, 0.95), eps=1e-5),
        ),
        (LazyAdam.fused(), lambda p: torch.optim.SparseAdam(p)),
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


@pytest.mark.parametrize("formula", ALL, ids=repr)
def test_an_optimizer_steps_by_the_formula_of_its_name_and_numbers(formula):
    """To the bit: it is the fused update but for who keeps what is remembered."""
    fused, table = a_table(formula), a_table(None)
    optimizer = getattr(optim, formula.name)(table, **asdict(formula))
    for batch in batches():
        fused.update(*batch)
        table.update(*batch)
        assert torch.equal(table.weight, fused.weight)
        assert torch.equal(table.bias, fused.bias)
    state = dict(table.gradients.state)
    assert int(state.pop("step")) == fused.num_updates == table.num_updates == STEPS
    kept = {name: value for name, value in fused.row_tensors().items() if "_" in name}
    assert state.keys() == kept.keys()
    assert all(torch.equal(state[name], kept[name]) for name in kept)
    assert repr(optimizer.update_of(table.gradients.anchor)) == repr(formula)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_an_untouched_row_neither_moves_nor_decays_nor_ages(optimizer):
    table = a_table(optimizer)
    before = {name: value.clone() for name, value in table.row_tensors().items()}
    for batch in batches():
        table.update(*batch)
    for name, value in table.row_tensors().items():
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
    names = {n: value.shape for n, value in a_table(RowwiseAdagrad.fused()).row_tensors().items()}
    assert names == {"weight": (C, D), "weight_sum": (C, 1), "bias": (C,), "bias_sum": (C, 1)}
    wide = {name: value.shape for name, value in a_table(Adagrad.fused()).row_tensors().items()}
    assert wide == names | {"weight_sum": (C, D)}


def test_a_row_of_zero_gradients_does_not_divide_by_zero():
    for optimizer in (
        Adagrad.fused(initial_sum=0.0),
        RowwiseAdagrad.fused(initial_sum=0.0),
        LazyAdam.fused(),
    ):
        table = a_table(optimizer)
        before = table.weight.clone()
        table.update(torch.tensor([4]), torch.zeros(1, D), torch.zeros(1))
        assert torch.equal(table.weight, before)


@pytest.mark.parametrize("optimizer", [SGD, Adagrad, RowwiseAdagrad, LazyAdam])
def test_a_learning_rate_of_zero_moves_no_row(optimizer):
    """As a schedule that warms up from 0 has it; what is remembered of the rows goes on."""
    table = a_table(optimizer.fused(lr=0))
    before = {name: value.clone() for name, value in table.row_tensors().items()}
    for batch in batches():
        table.update(*batch)
    for name, value in table.row_tensors().items():
        assert torch.equal(value, before[name]) == (name in ("weight", "bias")), name


def test_numbers_may_be_changed_between_steps():
    table, reference = a_table(SGD.fused(lr=0.3)), a_table(SGD.fused(lr=0.3))
    table.row_optimizer.lr = 0.6
    (ids, *grads), *_ = batches()
    table.update(ids, *grads)
    for _ in range(2):
        reference.update(ids, *grads)
    torch.testing.assert_close(table.weight, reference.weight)
    assert repr(table.row_optimizer) == "SGD(lr=0.6, weight_decay=0.0)"
    table.row_optimizer.lr = torch.tensor(0.5)  # as torch's own optimizers may have it
    assert type(table.row_optimizer.lr) is float
    adam = LazyAdam.fused()
    adam.betas = [0.5, 0]
    assert adam.betas == (0.5, 0.0)


def test_a_number_that_a_formula_does_not_have_is_told():
    """Or a misspelt one would be set without any effect."""
    optimizer = Adagrad.fused(lr=0.3)
    with pytest.raises(AttributeError) as error:
        optimizer.learning_rate = 0.1
    assert str(error.value) == (
        "Adagrad has no number 'learning_rate'. It has: lr, weight_decay, initial_sum, eps."
    )
    assert repr(optimizer) == "Adagrad(lr=0.3, weight_decay=0.0, initial_sum=1e-06, eps=1e-10)"


def test_a_bad_number_set_later_is_told_and_the_old_one_stays():
    optimizer = LazyAdam.fused(lr=0.3)
    for name, bad, words in (
        ("lr", -1, "LazyAdam.lr must be a finite number of at least 0, got -1."),
        ("lr", torch.tensor(torch.nan), "LazyAdam.lr must be a finite number of at least 0, got "),
        ("betas", (0.9,), "LazyAdam.betas must be two numbers in [0, 1), got (0.9,)."),
    ):
        with pytest.raises(UsageError) as error:
            setattr(optimizer, name, bad)
        assert str(error.value).startswith(words)
    assert optimizer == LazyAdam.fused(lr=0.3)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: SGD.fused(lr=-0.1), "SGD.lr must be a finite number of at least 0, got -0.1."),
        (lambda: SGD.fused(lr=torch.inf), "SGD.lr must be a finite number of at least 0, got inf."),
        (lambda: SGD.fused(lr="fast"), "SGD.lr must be a finite number of at least 0, got 'fast'."),
        (
            lambda: SGD.fused(weight_decay=-0.1),
            "SGD.weight_decay must be a finite number of at least 0, got -0.1.",
        ),
        (
            lambda: Adagrad.fused(lr=torch.nan),
            "Adagrad.lr must be a finite number of at least 0, got nan.",
        ),
        (
            lambda: Adagrad.fused(initial_sum=-1.0),
            "Adagrad.initial_sum must be a finite number of at least 0, got -1.0.",
        ),
        (
            lambda: RowwiseAdagrad.fused(eps=0.0),
            "RowwiseAdagrad.eps must be a finite number above 0, got 0.0.",
        ),
        (
            lambda: RowwiseAdagrad.fused(weight_decay=torch.inf),
            "RowwiseAdagrad.weight_decay must be a finite number of at least 0, got inf.",
        ),
        (
            lambda: LazyAdam.fused(lr=-1),
            "LazyAdam.lr must be a finite number of at least 0, got -1.",
        ),
        (lambda: LazyAdam.fused(eps=0.0), "LazyAdam.eps must be a finite number above 0, got 0.0."),
        (
            lambda: LazyAdam.fused(betas=(1.0, 0.9)),
            "LazyAdam.betas must be two numbers in [0, 1), got (1.0, 0.9).",
        ),
        (
            lambda: LazyAdam.fused(betas=(0.9, -0.1)),
            "LazyAdam.betas must be two numbers in [0, 1), got (0.9, -0.1).",
        ),
        (
            lambda: LazyAdam.fused(betas=0.9),
            "LazyAdam.betas must be two numbers in [0, 1), got 0.9.",
        ),
    ],
)
def test_a_bad_number_is_told_its_name_and_bound(build, words):
    with pytest.raises(UsageError) as error:
        build()
    assert str(error.value) == words


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda rows: SGD(rows, lr=-0.1), "SGD.lr must be a finite number of at least 0, got -0.1"),
        (lambda rows: RowwiseAdagrad(rows, eps=0.0), "RowwiseAdagrad.eps must be a finite number"),
        (lambda rows: LazyAdam(rows, betas=(1.0, 0.9)), "LazyAdam.betas must be two numbers in [0"),
    ],
)
def test_an_optimizer_refuses_the_numbers_that_its_formula_refuses(build, words):
    with pytest.raises(UsageError) as error:
        build(a_table(None))
    assert str(error.value).startswith(words)
