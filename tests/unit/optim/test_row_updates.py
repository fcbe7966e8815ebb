"""Row updates against loops in float64 and against torch.optim with sparse gradients.

And stochastic rounding to bfloat16: right in the mean, and only where rounding is needed.
"""

from dataclasses import asdict

import pytest
import torch
from error_text import raises_text
from oracle.tables import SlowRows

from tapas import LocalTable, optim
from tapas.optim import SGD, Adagrad, LazyAdam, RowwiseAdagrad
from tapas.optim.row_updates import round_to_bfloat16
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
    """Several steps with repeated and missing ids, and gradients of all magnitudes."""
    for step in range(STEPS):
        generator = stream(0, "batch", step)
        ids = torch.randint(0, C - 2, (N,), generator=generator)  # the last two never occur
        ids[1] = ids[0]
        size = 10.0 ** torch.randint(-3, 2, (N, 1), generator=generator)
        weight_grad = size * torch.randn(N, D, generator=generator)
        yield ids, weight_grad, torch.randn(N, generator=generator)


def a_table(optimizer):
    bias = torch.randn(C, generator=stream(0, "bias"))
    return LocalTable(C, D, row_optimizer=optimizer, bias=bias)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_every_step_equals_the_loops(optimizer):
    """Weight decay applies to the rows of a step, and never to biases."""
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
def test_every_step_equals_torch_optim_with_sparse_gradients(optimizer, reference):
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
def test_an_optimizer_applies_the_update_with_its_hyperparameters(formula):
    """Bit by bit as the fused update; only the state is kept elsewhere."""
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
def test_a_row_without_a_gradient_does_not_change_nor_does_its_state(optimizer):
    table = a_table(optimizer)
    before = {name: value.clone() for name, value in table.row_tensors().items()}
    for batch in batches():
        table.update(*batch)
    for name, value in table.row_tensors().items():
        assert torch.equal(value[C - 2 :], before[name][C - 2 :]), name
        assert not torch.equal(value, before[name])


def test_the_state_of_rowwise_adagrad_is_one_number_per_row():
    names = {n: value.shape for n, value in a_table(RowwiseAdagrad.fused()).row_tensors().items()}
    assert names == {"weight": (C, D), "weight_sum": (C, 1), "bias": (C,), "bias_sum": (C, 1)}
    wide = {name: value.shape for name, value in a_table(Adagrad.fused()).row_tensors().items()}
    assert wide == names | {"weight_sum": (C, D)}


def test_a_row_of_zero_gradients_does_not_divide_by_zero():
    for optimizer in (Adagrad, RowwiseAdagrad, LazyAdam):
        options = {} if optimizer is LazyAdam else {"initial_sum": 0.0}
        table = a_table(optimizer.fused(**options))
        before = table.weight.clone()
        table.update(torch.tensor([4]), torch.zeros(1, D), torch.zeros(1))
        assert torch.equal(table.weight, before)


@pytest.mark.parametrize("optimizer", [SGD, Adagrad, RowwiseAdagrad, LazyAdam])
def test_a_learning_rate_of_zero_moves_no_row(optimizer):
    """As in a warm-up from 0; the state is still updated."""
    table = a_table(optimizer.fused(lr=0))
    before = {name: value.clone() for name, value in table.row_tensors().items()}
    for batch in batches():
        table.update(*batch)
    for name, value in table.row_tensors().items():
        assert torch.equal(value, before[name]) == (name in ("weight", "bias")), name


def test_hyperparameters_may_change_between_steps():
    table, reference = a_table(SGD.fused(lr=0.3)), a_table(SGD.fused(lr=0.3))
    table.row_optimizer.lr = 0.6
    (ids, *grads), *_ = batches()
    table.update(ids, *grads)
    for _ in range(2):
        reference.update(ids, *grads)
    torch.testing.assert_close(table.weight, reference.weight)
    assert repr(table.row_optimizer) == "SGD(lr=0.6, weight_decay=0.0)"
    table.row_optimizer.lr = torch.tensor(0.5)  # torch's optimizers accept tensors, too
    assert type(table.row_optimizer.lr) is float
    adam = LazyAdam.fused()
    adam.betas = [0.5, 0]
    assert adam.betas == (0.5, 0.0)


def test_an_unknown_hyperparameter_is_an_error():
    """Otherwise a misspelt one would have no effect."""
    optimizer = Adagrad.fused(lr=0.3)
    words = "Adagrad has no number 'learning_rate'. It has: lr, weight_decay, initial_sum, eps."
    with raises_text(words, AttributeError):
        optimizer.learning_rate = 0.1
    assert repr(optimizer) == "Adagrad(lr=0.3, weight_decay=0.0, initial_sum=1e-06, eps=1e-10)"


BAD = [
    (SGD, "lr", -0.1, "a finite number of at least 0"),
    (SGD, "lr", torch.inf, "a finite number of at least 0"),
    (SGD, "lr", "fast", "a finite number of at least 0"),
    (SGD, "weight_decay", -0.1, "a finite number of at least 0"),
    (Adagrad, "lr", torch.nan, "a finite number of at least 0"),
    (Adagrad, "initial_sum", -1.0, "a finite number of at least 0"),
    (RowwiseAdagrad, "eps", 0.0, "a finite number above 0"),
    (RowwiseAdagrad, "weight_decay", torch.inf, "a finite number of at least 0"),
    (LazyAdam, "lr", -1, "a finite number of at least 0"),
    (LazyAdam, "eps", 0.0, "a finite number above 0"),
    (LazyAdam, "betas", (1.0, 0.9), "two numbers in [0, 1)"),
    (LazyAdam, "betas", (0.9, -0.1), "two numbers in [0, 1)"),
    (LazyAdam, "betas", (0.9,), "two numbers in [0, 1)"),
    (LazyAdam, "betas", 0.9, "two numbers in [0, 1)"),
]


@pytest.mark.parametrize(("kind", "name", "bad", "expected"), BAD)
def test_a_bad_hyperparameter_is_refused_with_its_bound_and_the_old_one_stays(
    kind, name, bad, expected
):
    """In a new update, in an existing one, and in an optimizer."""
    words = f"{kind.__name__}.{name} must be {expected}, got {bad!r}."
    formula = kind.fused()
    with raises_text(words):
        kind.fused(**{name: bad})
    with raises_text(words):
        setattr(formula, name, bad)
    with raises_text(words):
        kind(a_table(None), **{name: bad})
    assert formula == kind.fused()


M, DRAWS = 31, 4000


def down(value):
    """`value` truncated to bfloat16."""
    return (value.view(torch.int32) & -(1 << 16)).view(torch.float32)


def up(value):
    """The next bfloat16 away from zero."""
    return (down(value).view(torch.int32) + (1 << 16)).view(torch.float32)


def test_stochastic_rounding_is_unbiased():
    scale = 10.0 ** torch.randint(-30, 30, (M,), generator=stream(0, "scale"))
    value = scale * torch.randn(M, generator=stream(0, "value"))
    assert bool((value < 0).any())
    low, high = down(value).double(), up(value).double()
    given = value.repeat(DRAWS, 1)
    rounded = round_to_bfloat16(given, stream(0, "noise")).double()
    assert torch.equal(given, value.repeat(DRAWS, 1))  # unchanged
    assert bool(((rounded == low) | (rounded == high)).all())
    chance = (value.double() - low) / (high - low)
    error = ((rounded == high).double().mean(dim=0) - chance).abs()
    # 31 comparisons: a fair rounding fails 1 seed in 4,700
    assert bool((error <= 4.5 * (chance * (1 - chance) / DRAWS).sqrt()).all())


def test_numbers_that_bfloat16_can_represent_are_unchanged():
    value = torch.randn(M, generator=stream(0, "value")).bfloat16().float()
    value[:4] = torch.tensor([0.0, -0.0, 2.0**-133, -(2.0**127)])
    value = value.repeat(40_000, 1)  # noise of one bit too much shows once in 65,536
    rounded = round_to_bfloat16(value, stream(0, "noise"))
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded.float().view(torch.int32), value.view(torch.int32))


def test_infinity_and_nan_are_unchanged():
    value = torch.tensor([[torch.inf, -torch.inf, torch.nan, 1.0]]).repeat(DRAWS, 1)
    value[:, 2] = torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)  # all but inf
    rounded = round_to_bfloat16(value, stream(0, "noise")).float()
    assert bool((rounded[:, 0] == torch.inf).all())
    assert bool((rounded[:, 1] == -torch.inf).all())
    assert bool(rounded[:, 2].isnan().all())
    assert bool((rounded[:, 3] == 1).all())


@pytest.mark.slow
def test_many_steps_below_the_spacing_of_bfloat16_add_up_on_average():
    """From 1 by 0.0001 to 1.1; the spacing is 0.0078, so rounding to nearest would never move."""
    num_rows, dim, steps, lr = 61, 7, 1000, 1e-4
    table = LocalTable(
        num_rows, dim, row_optimizer=SGD.fused(lr=lr), dtype=torch.bfloat16, bias=True
    )
    table.weight.fill_(1.0)
    table.bias.fill_(1.0)
    assert torch.equal((table.weight.float() + lr).bfloat16(), table.weight)
    ids, grad = torch.arange(num_rows), torch.full((num_rows, dim), -1.0)
    for _ in range(steps):
        table.update(ids, grad, grad[:, 0])
    assert table.weight.dtype == table.bias.dtype == torch.bfloat16
    for arrived in (table.weight.double().flatten(), table.bias.double()):
        error = (arrived.mean() - (1 + steps * lr)).abs()
        # 2 comparisons at 4.5 standard errors: a fair rounding fails 1 seed in 70,000
        assert bool(error < 4.5 * arrived.std() / len(arrived) ** 0.5)


def test_rounding_depends_on_the_seed_and_the_number_of_updates_alone():
    def moved(seed, skip=0):
        table = LocalTable(M, 3, row_optimizer=SGD.fused(lr=1e-4), dtype=torch.bfloat16, seed=seed)
        table.weight.fill_(1.0)
        table.num_updates = skip
        table.update(torch.arange(M), -torch.ones(M, 3), torch.zeros(M))
        return table.weight.float()

    assert torch.equal(moved(0), moved(0))
    assert not torch.equal(moved(0), moved(1))
    assert not torch.equal(moved(0), moved(0, skip=1))
