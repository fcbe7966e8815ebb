"""The contract of `ClassTable` for all implementations: rows, updates and gradients."""

import pytest
import torch
from contracts import multi_rank_table
from contracts.tables import (
    BACKENDS,
    B,
    C,
    D,
    attach,
    builder,
    draw,
    everything,
    num_updates,
    on_every_rank,
    same,
    select,
    waiting,
)

from tapas import UsageError
from tapas.candidates import Candidates
from tapas.optim import SGD, Adagrad, LazyAdam, RowwiseAdagrad
from tapas.rng import stream
from tapas.tables.ranks import GlobalBatch

EITHER_WAY = pytest.mark.parametrize("fused", [True, False], ids=["fused", "step"])
NOT_FINITE = (
    "the gradient of the class rows holds NaN or inf; no row was changed. Lower the learning rate, "
    "clip gradients, or use a torch.amp.GradScaler, which skips such a step."
)


@pytest.fixture(params=BACKENDS)
def make(request):
    yield from builder(request.param)


def a_table(make, formula, fused):
    """A table whose rows move by `formula`, fused or by an optimizer."""
    table = make(formula, fused=fused)
    if not fused:
        attach(table, formula)
    return table


def test_rows_are_float32_and_may_repeat(make):
    table = make()
    ids = torch.tensor([30, 4, 0, 4])
    weight, bias = table.rows(ids)
    assert (weight.shape, bias.shape) == ((4, D), (4,))
    assert weight.dtype == bias.dtype == torch.float32
    assert weight.device == bias.device == table.device
    assert torch.equal(weight[1], weight[3])
    everyone = table.rows(torch.arange(C))
    assert torch.equal(weight, everyone[0][ids])
    assert torch.equal(bias, everyone[1][ids])
    assert [part.shape for part in table.rows(ids[:0])] == [(0, D), (0,)]
    assert torch.equal(table.rows(ids.int())[0], weight)


def test_rows_are_copies(make):
    table = make()
    before = everything(table)
    for part in table.rows(torch.arange(C)):
        part.fill_(7.0)
    assert same(before, everything(table))


TWO, QUERY = torch.arange(2), draw(B, D)
OUTSIDE = torch.tensor([3, 31])
NO_CLASS = "holds class 31; expected ids from 0 to 30 (num_classes=31)."
NO_INTEGER = (
    "has dtype torch.float32; expected int64 class ids. Keep ids as integers: floats corrupt them."
)
RISE = (
    "the ids of candidates must be distinct and ascending, because targets are looked up among "
    "them. Sort ids and log_q together."
)


def update(table, ids):
    table.update(ids, torch.zeros(2, D), torch.zeros(2))


def logits_of(table, pool):
    target = torch.zeros(B, 1, dtype=torch.int64)
    return table.sampled_logits(GlobalBatch.local(QUERY, target), pool)


def candidates(*ids):
    return Candidates(torch.tensor(ids), torch.zeros(len(ids)))


BAD_CALLS = [
    (lambda t: t.rows(OUTSIDE), f"ids {NO_CLASS}"),
    (lambda t: t.rows(torch.zeros(2, 1).long()), "ids has shape (2, 1); expected (N)."),
    (lambda t: t.rows(torch.zeros(2)), f"ids {NO_INTEGER}"),
    (lambda t: t.lookup(OUTSIDE), f"ids {NO_CLASS}"),
    (lambda t: update(t, OUTSIDE), f"ids {NO_CLASS}"),
    (lambda t: update(t, TWO - 1), f"ids {NO_CLASS}".replace("31;", "-1;")),
    (lambda t: update(t, TWO[:, None]), "ids has shape (2, 1); expected (N)."),
    (lambda t: update(t, TWO.float()), f"ids {NO_INTEGER}"),
    (
        lambda t: t.update(TWO, torch.zeros(2, 4), torch.zeros(2)),
        "weight_grad has shape (2, 4); expected (N=2, D=3).",
    ),
    (
        lambda t: t.update(TWO, torch.zeros(2, D), torch.zeros(3)),
        "bias_grad has shape (3,); expected (N=2).",
    ),
    (lambda t: t.topk(QUERY, 0), "k must be at least 1, got 0."),
    (lambda t: t.topk(QUERY, 2.0), "k must be an integer, got 2.0."),
    (lambda t: t.topk(QUERY, 32), "k is 32, but there are only 31 classes."),
    (
        lambda t: t.topk(QUERY, 2, exclude=torch.zeros(4, 1).long()),
        "exclude has shape (4, 1); expected (B=5, E).",
    ),
    (lambda t: t.topk(QUERY, 2, exclude=torch.full((B, 1), 31)), f"exclude {NO_CLASS}"),
    (lambda t: t.topk(QUERY, 2, exclude=torch.zeros(B, 1)), f"exclude {NO_INTEGER}"),
    (lambda t: logits_of(t, candidates(4, 20, 5)), RISE),
    (lambda t: t.select(candidates(4, 5, 5), None), RISE),
    (lambda t: select(t, QUERY, candidates(1, 5, 31), 2), f"pool {NO_CLASS}"),
    (
        lambda t: select(t, QUERY, candidates(-3, 1, 5), 2),
        f"pool {NO_CLASS}".replace("31;", "-3;"),
    ),
    (
        lambda t: select(t, QUERY, candidates(1, 5, 9), 2, target=torch.zeros(2, 1).long()),
        "target has shape (2, 1); expected (A=5, L).",
    ),
]


def test_a_bad_call_is_an_error_and_changes_nothing(make):
    """Such as candidates that are not ascending, among which targets would not be found."""
    table = make()
    before = everything(table)
    for call, words in BAD_CALLS:
        with pytest.raises(UsageError) as error:
            call(table)
        assert str(error.value) == words
    assert same(before, everything(table))


@EITHER_WAY
def test_a_repeated_id_is_one_update_with_the_summed_gradient(make, fused):
    """Adagrad is not linear: two steps, or a sum of two squares, would give other rows."""
    table, reference = (a_table(make, Adagrad.fused(lr=0.3), fused) for _ in range(2))
    ids, grad, bias_grad = torch.tensor([4, 9, 4, 30, 4]), draw(5, D), draw(5, name="bias")
    table.update(ids, grad, bias_grad)
    once = [torch.stack([g[ids == c].sum(0) for c in (4, 9, 30)]) for g in (grad, bias_grad)]
    reference.update(torch.tensor([4, 9, 30]), *once)
    torch.testing.assert_close(everything(table), everything(reference))


@pytest.mark.parametrize(
    "optimizer", [SGD.fused(weight_decay=0.1), LazyAdam.fused(lr=0.1)], ids=repr
)
@EITHER_WAY
def test_only_the_given_rows_move(make, optimizer, fused):
    table = a_table(make, optimizer, fused)
    table.update(torch.arange(C), draw(C, D), draw(C))
    before = everything(table)
    table.update(torch.tensor([7, 0, 7]), draw(3, D, name="g"), draw(3, name="b"))
    after = everything(table)
    assert same(before, after, but=(0, 7))
    for name in before:
        assert not (before[name][[0, 7]] == after[name][[0, 7]]).any(), name


@EITHER_WAY
def test_an_update_of_nothing_changes_nothing(make, fused):
    table, reference = (a_table(make, LazyAdam.fused(), fused) for _ in range(2))
    table.update(torch.arange(0), torch.zeros(0, D), torch.zeros(0))
    assert same(everything(table), everything(reference))
    for one in (table, reference):  # the count of updates, which Adam's scale hangs on, stood still
        one.update(torch.tensor([3]), draw(1, D), draw(1))
    assert same(everything(table), everything(reference))


@EITHER_WAY
def test_a_gradient_that_is_not_finite_is_an_error_and_moves_nothing(make, fused):
    table = a_table(make, Adagrad.fused(), fused)
    before = everything(table)
    for part, bad in (
        (0, [torch.nan, 0]),
        (0, [torch.inf, -torch.inf]),
        (1, [torch.inf, 0]),
        (1, [1e39, 0]),  # is infinite in float32
    ):
        grads = [draw(4, D).double(), draw(4).double()]
        grads[part][1:3] = torch.tensor(bad, dtype=torch.float64).view(2, *[1] * (1 - part))
        with pytest.raises(UsageError) as error:
            table.update(torch.tensor([5, 6, 7, 8]), *grads)
        assert str(error.value) == NOT_FINITE
        assert same(before, everything(table))


@EITHER_WAY
def test_finite_half_precision_gradients_are_accepted(make, fused):
    """Their sum overflows float16, though each is finite."""
    table, reference = (a_table(make, SGD.fused(), fused) for _ in range(2))
    grad = torch.full((4, D), 3e4)
    table.update(torch.arange(4), grad.half(), torch.zeros(4).half())
    reference.update(torch.arange(4), grad, torch.zeros(4))
    assert same(everything(table), everything(reference))


def test_an_update_without_an_optimizer_is_an_error(make):
    table = make(fused=False)
    before = everything(table)
    with pytest.raises(UsageError) as error:
        table.update(torch.tensor([3]), torch.ones(1, D), torch.ones(1))
    assert str(error.value) == (
        "these rows have no optimizer yet. Create one, tapas.optim.RowwiseAdagrad(table, lr=0.1), "
        "or build the table with "
        "row_optimizer=tapas.optim.RowwiseAdagrad.fused(lr=0.1)."
    )
    assert same(before, everything(table))


def test_an_update_leaves_queued_gradients_alone(make):
    """Gradients of a backward pass are neither applied nor lost."""
    table, reference = make(SGD.fused(lr=0.5), fused=False), make(SGD.fused(lr=0.5))
    optimizer = attach(table, SGD.fused(lr=0.5))
    ids, pull = torch.tensor([4, 9]), exact_gradients(2, D, name="pull")
    (table.lookup(ids) * pull).sum().backward()
    by_hand = torch.tensor([9, 30]), exact_gradients(2, D, name="hand"), torch.ones(2)
    table.update(*by_hand)
    reference.update(*by_hand)
    assert same_rows(table, reference)
    optimizer.step()
    reference.update(ids, pull, torch.zeros(2))
    assert same_rows(table, reference)


def test_accumulated_updates_are_applied_as_one_at_the_end(make):
    """Even if the caller reuses the memory of its gradients."""
    table, reference = make(), make()
    ids, grads = torch.tensor([4, 9, 4, 9]), (draw(4, D), draw(4, name="b"))
    before = everything(table)
    with table.accumulate():
        pass
    with table.accumulate():
        for part in (slice(3), slice(3, None), slice(0)):
            buffers = ids[part].clone(), grads[0][part].clone(), grads[1][part].clone()
            table.update(*buffers)
            for buffer in buffers:
                buffer.zero_()
        assert same(before, everything(table))
    reference.update(ids, *grads)
    assert not same(before, everything(table))
    assert same(everything(table), everything(reference))
    table.update(ids, *grads)  # and outside the block nothing is held back any more
    assert not same(everything(table), everything(reference))


def test_after_an_exception_no_accumulated_update_is_applied(make):
    table, reference = make(), make()
    ids, grads = torch.tensor([4, 9]), (draw(2, D), draw(2))

    def interrupted():
        with table.accumulate():
            table.update(ids, *grads)
            raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="the caller's own"):
        interrupted()
    assert same(everything(table), everything(reference))
    for one in (table, reference):  # the block is over: the next update counts at once
        one.update(ids, *grads)
    assert same(everything(table), everything(reference))


def test_a_bad_gradient_discards_all_updates_of_the_block(make):
    table = make()
    before = everything(table)

    def spoiled():
        with table.accumulate():
            table.update(torch.tensor([4]), torch.ones(1, D), torch.ones(1))
            table.update(torch.tensor([9]), torch.full((1, D), torch.nan), torch.ones(1))

    with pytest.raises(UsageError) as error:
        spoiled()
    assert str(error.value) == NOT_FINITE
    assert same(before, everything(table))


def test_blocks_cannot_be_nested_and_the_outer_one_goes_on(make):
    table, reference = make(), make()
    ids, grads = torch.tensor([4, 9]), (draw(2, D), draw(2))
    with table.accumulate():
        table.update(ids, *grads)
        with pytest.raises(UsageError) as error, table.accumulate():
            pass
        assert str(error.value) == "this table is already accumulating; leave that block first."
        assert same(everything(table), everything(reference))
    reference.update(ids, *grads)
    assert same(everything(table), everything(reference))


def test_backward_through_lookup_moves_the_rows(make):
    """Biases, too, if they are returned and used. Ranks average the gradients."""
    pull, push = draw(2, 2, D, name="pull"), draw(2, 2, name="push")
    ids, unused = torch.tensor([[4, 9], [4, 30]]), torch.zeros(2, 2)
    for with_bias, bias_grad in ((False, unused), (True, unused), (True, push)):
        table, other = make(SGD.fused(lr=0.5)), make(SGD.fused(lr=0.5))
        found = table.lookup(ids, return_bias=with_bias)
        weight, bias = found if with_bias else (found, torch.zeros(2, 2))
        want = table.rows(ids.reshape(-1))
        assert torch.equal(weight.detach(), want[0].view(2, 2, D))
        assert torch.equal(bias.detach(), want[1].view(2, 2))
        loss = (weight * pull).sum()
        if bias_grad is push:
            loss = loss + (bias * push).sum()
        loss.backward()
        other.update(ids.reshape(-1), pull.reshape(4, D), bias_grad.reshape(4))
        torch.testing.assert_close(everything(other), everything(table), rtol=1e-6, atol=1e-7)


def test_lookup_and_logits_inside_accumulate_are_one_update(make):
    table, other = make(), make()
    ids, grad = torch.tensor([3, 5]), draw(2, D, name="grad")
    with table.accumulate():
        for _ in range(2):
            (table.lookup(ids) * grad).sum().backward()
    other.update(ids.repeat(2), grad.repeat(2, 1), torch.zeros(4))
    torch.testing.assert_close(everything(other), everything(table), rtol=1e-6, atol=1e-7)


FORMULAS = [
    SGD.fused(lr=0.5, weight_decay=0.1),
    Adagrad.fused(lr=0.5),
    RowwiseAdagrad.fused(lr=0.5, initial_sum=0.1),
    LazyAdam.fused(lr=0.1, betas=(0.8, 0.9)),
]


def exact_gradients(*shape, name):
    """Gradients whose sums, averages over three ranks and halves are exact in any order."""
    return torch.randint(-4, 5, shape, generator=stream(0, name)).float() * 2


def same_rows(table, other):
    """Whether rows and biases are equal, without other state."""
    found, want = everything(table), everything(other)
    return all(torch.equal(found[name], want[name]) for name in ("rows", "biases"))


def looked_up(table, step):
    return (table.lookup(torch.tensor([[4, 9], [4, 30]])) * draw(2, 2, D, name=f"l{step}")).sum()


def live(table, step):
    weight, bias = table.lookup(torch.tensor([9, 2, 9, 17]), return_bias=True)
    return (weight * draw(4, D, name=f"w{step}")).sum() + (bias * draw(4, name=f"b{step}")).sum()


def sampled(table, step):
    target = torch.tensor([[4, 30], [4, -1], [6, 7], [8, 8], [-1, 2]])
    kept = Candidates(torch.tensor([4, 5, 17, 20]), draw(4))
    query = draw(B, D, name=f"q{step}").requires_grad_()
    positive, log_sum = table.sampled_logits(GlobalBatch.local(query, target), kept)
    return positive.masked_fill(target < 0, 0.0).sum() + log_sum.sum()


PASSES = {formula.name: (formula, [looked_up, sampled, live, looked_up]) for formula in FORMULAS}
PASSES |= {verb.__name__: (FORMULAS[1], [verb]) for verb in (looked_up, sampled, live)}


@pytest.mark.parametrize("name", PASSES)
def test_an_optimizer_gives_the_rows_and_the_state_of_the_fused_update(make, name):
    """Bit by bit: gradients are summed in the same order."""
    formula, verbs = PASSES[name]
    fused, table = make(formula), make(formula, fused=False)
    optimizer = attach(table, formula)
    for step in range(3):
        sum(verb(fused, step) for verb in verbs).backward()
        optimizer.zero_grad()
        before = everything(table)
        sum(verb(table, step) for verb in verbs).backward()
        assert same(before, everything(table))  # rows wait for the step
        optimizer.step()
    assert same(everything(fused), everything(table))
    assert num_updates(fused) == num_updates(table) == 3
    made, saved = (
        on_every_rank(table, function)
        for function in (multi_rank_table.row_state_of, multi_rank_table.optimizer_state_of)
    )
    for one, other in zip(made, saved, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def waiting_for_a_step(make, formula=Adagrad.fused()):  # noqa: B008
    """A table with its optimizer, and one that is fused."""
    table = make(formula, fused=False)
    return table, attach(table, formula), make(formula)


def pull_rows(table, ids, pull, push):
    """Run a backward pass with these gradients of rows and biases."""
    weight, bias = table.lookup(ids, return_bias=True)
    ((weight * pull).sum() + (bias * push).sum()).backward()


IDS = torch.tensor([4, 9, 4])
PULL, PUSH = exact_gradients(3, D, name="pull"), exact_gradients(3, name="push")


def test_zero_grad_drops_queued_gradients(make):
    table = make(LazyAdam.fused(), fused=False)
    optimizer = attach(table, LazyAdam.fused())
    before = everything(table)
    live(table, 0).backward()
    assert waiting(table) is not None
    optimizer.zero_grad()
    assert waiting(table) is None
    assert set(on_every_rank(table, multi_rank_table.anchor_grad_of)) == {None}
    optimizer.step()
    assert same(before, everything(table))
    assert num_updates(table) == 0  # Adam's scale hangs on it


def test_a_second_step_without_zero_grad_applies_the_gradient_again(make):
    """As in torch, which keeps `.grad` until `zero_grad`."""
    table, optimizer, reference = waiting_for_a_step(make)
    pull_rows(table, IDS, PULL, PUSH)
    for _ in range(2):
        optimizer.step()
        reference.update(IDS, PULL, PUSH)
        assert same(everything(table), everything(reference))
    assert num_updates(table) == num_updates(reference) == 2


def test_two_backward_passes_and_one_step_are_one_update_with_the_sum(make):
    """Adagrad is not linear: two updates, or a sum of two squares, would give other rows."""
    table, optimizer, reference = waiting_for_a_step(make)
    pull_rows(table, IDS, PULL, PUSH)
    pull_rows(table, IDS + 5, PULL, PUSH)
    optimizer.step()
    reference.update(torch.cat([IDS, IDS + 5]), PULL.repeat(2, 1), PUSH.repeat(2))
    assert same(everything(table), everything(reference))
    assert num_updates(table) == 1


def test_the_anchors_gradient_is_the_norm_of_the_queued_gradients_of_all_ranks(make):
    """Summed for each id, after one pass and after two."""
    table, _, _ = waiting_for_a_step(make)
    ids, want = torch.tensor([4, 9, 4, 30]), torch.zeros(C, D + 1)
    for number in range(2):
        pull = exact_gradients(4, D + 1, name=f"pull {number}")
        pull_rows(table, ids - number, pull[:, :D], pull[:, D])
        want.index_add_(0, ids - number, pull)
        norms = torch.tensor(on_every_rank(table, multi_rank_table.anchor_grad_of))
        torch.testing.assert_close(norms, want.norm().expand(len(norms)))
        assert all(map(torch.equal, waiting(table), (want[:, :D], want[:, D])))


@pytest.mark.parametrize("more", [0, 1])
def test_halving_the_anchors_gradient_halves_the_queued_gradients(make, more):
    """This is how clipping and unscaling reach the rows."""
    table, optimizer, reference = waiting_for_a_step(make)
    pull_rows(table, IDS, PULL, PUSH)
    on_every_rank(table, multi_rank_table.scale_anchor, 0.5)
    for _ in range(more):
        pull_rows(table, IDS, PULL, PUSH)
    optimizer.step()
    reference.update(IDS, (0.5 + more) * PULL, (0.5 + more) * PUSH)
    assert same(everything(table), everything(reference))


@pytest.mark.parametrize(("part", "bad"), [(0, torch.nan), (1, -torch.inf)])
def test_a_step_with_a_gradient_that_is_not_finite_is_an_error_and_moves_nothing(make, part, bad):
    """One entry of one row, which only one of the ranks has."""
    table, optimizer, reference = waiting_for_a_step(make)
    before = everything(table)
    spoilt = [PULL.clone(), PUSH.clone()]
    spoilt[part].view(3, -1)[1, -1] = bad
    for grads in (spoilt, (PULL, PUSH)):
        pull_rows(table, IDS, *grads)
        with pytest.raises(UsageError) as error:
            optimizer.step()
        assert str(error.value) == NOT_FINITE
        assert same(before, everything(table))
    assert num_updates(table) == 0
    optimizer.zero_grad()  # else it would stay: what was added to it is spoilt, too
    pull_rows(table, IDS, PULL, PUSH)
    optimizer.step()
    reference.update(IDS, PULL, PUSH)
    assert same(everything(table), everything(reference))


@EITHER_WAY
@pytest.mark.parametrize("verb", [looked_up, live, sampled])
def test_a_frozen_table_does_not_move_until_it_is_unfrozen(make, verb, fused):
    """Queries still get gradients."""
    table = make(fused=fused).requires_grad_(False)
    optimizer = None if fused else attach(table, Adagrad.fused())
    before, loss = everything(table), verb(table, 0)
    assert loss.requires_grad == (verb is sampled)
    if loss.requires_grad:
        loss.backward()
    assert waiting(table) is None
    assert set(on_every_rank(table, multi_rank_table.anchor_grad_of)) == {None}
    if optimizer:
        optimizer.step()
    assert same(before, everything(table))
    table.requires_grad_(True)
    verb(table, 0).backward()
    if optimizer:
        assert waiting(table) is not None
        optimizer.step()
    assert not same_rows(table, make())


def test_updates_of_an_optimizer_are_not_held_back_by_accumulate(make):
    """Each of its steps is one update anyway."""
    table, optimizer, reference = waiting_for_a_step(make)
    with table.accumulate():
        pull_rows(table, IDS, PULL, PUSH)
        optimizer.step()
        reference.update(IDS, PULL, PUSH)
        assert same(everything(table), everything(reference))
    assert same(everything(table), everything(reference))
