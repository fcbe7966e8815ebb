"""Every sentence of `ClassTable` is a test, run over every implementation: rows and updates."""

import pytest
import torch
from contracts.tables import BACKENDS, C, D, builder, draw, everything, same

from tapas import SGD, Adagrad, LazyAdam, UsageError


@pytest.fixture(params=BACKENDS)
def make(request):
    yield from builder(request.param)


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


BAD_IDS = [
    (torch.tensor([3, 31]), "ids holds class 31; expected ids from 0 to 30 (num_classes=31)."),
    (torch.tensor([3, -1]), "ids holds class -1; expected ids from 0 to 30 (num_classes=31)."),
    (torch.zeros(2, 1, dtype=torch.int64), "ids has shape (2, 1); expected (N)."),
    (
        torch.zeros(2),
        "ids has dtype torch.float32; expected int64 class ids. Convert before the ids ever pass "
        "through a float.",
    ),
]


@pytest.mark.parametrize(("ids", "words"), BAD_IDS)
def test_ids_are_global_and_checked(make, ids, words):
    table = make()
    for verb in (table.rows, lambda ids: table.update(ids, torch.zeros(2, D), torch.zeros(2))):
        with pytest.raises(UsageError) as error:
            verb(ids)
        assert str(error.value) == words


def test_gradients_of_the_wrong_shape_are_told_both_shapes(make):
    with pytest.raises(UsageError) as error:
        make().update(torch.arange(2), torch.zeros(2, 4), torch.zeros(2))
    assert str(error.value) == "weight_grad has shape (2, 4); expected (N=2, D=3)."
    with pytest.raises(UsageError) as error:
        make().update(torch.arange(2), torch.zeros(2, D), torch.zeros(3))
    assert str(error.value) == "bias_grad has shape (3,); expected (N=2)."


def test_a_repeated_id_is_one_update_with_the_summed_gradient(make):
    """Adagrad is not linear: two steps, or the sum of two squares, would end elsewhere."""
    table, reference = make(Adagrad(lr=0.3)), make(Adagrad(lr=0.3))
    ids, grad, bias_grad = torch.tensor([4, 9, 4, 30, 4]), draw(5, D), draw(5, name="bias")
    table.update(ids, grad, bias_grad)
    once = [torch.stack([g[ids == c].sum(0) for c in (4, 9, 30)]) for g in (grad, bias_grad)]
    reference.update(torch.tensor([4, 9, 30]), *once)
    torch.testing.assert_close(everything(table), everything(reference))


@pytest.mark.parametrize("optimizer", [SGD(weight_decay=0.1), LazyAdam(lr=0.1)], ids=repr)
def test_only_the_rows_named_move(make, optimizer):
    table = make(optimizer)
    table.update(torch.arange(C), draw(C, D), draw(C))
    before = everything(table)
    table.update(torch.tensor([7, 0, 7]), draw(3, D, name="g"), draw(3, name="b"))
    after = everything(table)
    assert same(before, after, but=(0, 7))
    for name in before:
        assert not (before[name][[0, 7]] == after[name][[0, 7]]).any(), name


def test_an_update_of_nothing_changes_nothing(make):
    table, reference = make(LazyAdam()), make(LazyAdam())
    table.update(torch.arange(0), torch.zeros(0, D), torch.zeros(0))
    assert same(everything(table), everything(reference))
    for one in (table, reference):  # the count of updates, which Adam's scale hangs on, stood still
        one.update(torch.tensor([3]), draw(1, D), draw(1))
    assert same(everything(table), everything(reference))


@pytest.mark.parametrize("part", [0, 1], ids=["weight", "bias"])
@pytest.mark.parametrize(
    "bad", [[torch.nan, 0], [torch.inf, 0], [torch.inf, -torch.inf], [1e39, 0]]
)
def test_a_gradient_that_is_not_finite_is_an_error_and_moves_nothing(make, part, bad):
    table = make()
    before = everything(table)
    grads = [draw(4, D).double(), draw(4).double()]
    grads[part][1:3] = torch.tensor(bad, dtype=torch.float64).view(2, *[1] * (1 - part))
    with pytest.raises(UsageError) as error:
        table.update(torch.tensor([5, 6, 7, 8]), *grads)
    assert str(error.value) == (
        "the gradient of the class rows holds NaN or inf; no row was changed. Lower the learning "
        "rate, or drop loss scaling: the head computes in float32."
    )
    assert same(before, everything(table))


def test_half_precision_gradients_that_are_finite_are_no_error(make):
    """Their sum is beyond float16 while each is well inside."""
    table, reference = make(SGD()), make(SGD())
    grad = torch.full((4, D), 3e4)
    table.update(torch.arange(4), grad.half(), torch.zeros(4).half())
    reference.update(torch.arange(4), grad, torch.zeros(4))
    assert same(everything(table), everything(reference))


def test_write_is_update_and_read_is_rows(make):
    table, reference = make(), make()
    ids, grads = torch.tensor([4, 9, 4]), (draw(3, D), draw(3))
    table.write(ids, *grads)
    reference.update(ids, *grads)
    assert same(everything(table), everything(reference))
    with table.accumulate():  # only `update` waits for the end of the block
        table.write(ids, *grads)
        reference.update(ids, *grads)
        assert same(everything(table), everything(reference))
    for read, row in zip(table.read(ids), reference.rows(ids), strict=True):
        assert torch.equal(read, row)


def test_reads_see_every_earlier_update_after_flush_and_at_once_if_declared(make):
    table = make(SGD(lr=1.0))
    assert isinstance(type(table).exact_reads, bool)
    weight, _ = table.rows(torch.tensor([6]))
    table.update(torch.tensor([6]), torch.ones(1, D), torch.zeros(1))
    if not table.exact_reads:
        table.flush()
    assert torch.equal(table.rows(torch.tensor([6]))[0], weight - 1)


def test_closing_twice_is_safe(make):
    table = make()
    table.close()
    table.close()


def test_accumulated_updates_are_applied_as_one_at_the_end(make):
    table, reference = make(), make()
    ids, grads = torch.tensor([4, 9, 4, 9]), (draw(4, D), draw(4, name="b"))
    before = everything(table)
    with table.accumulate():
        table.update(ids[:3], grads[0][:3], grads[1][:3])
        table.update(ids[3:], grads[0][3:], grads[1][3:])
        table.update(ids[:0], grads[0][:0], grads[1][:0])
        assert same(before, everything(table))
    reference.update(ids, *grads)
    assert not same(before, everything(table))
    assert same(everything(table), everything(reference))
    table.update(ids, *grads)  # and outside the block nothing is held back any more
    assert not same(everything(table), everything(reference))


def test_what_is_held_is_what_was_given_even_if_the_caller_reuses_the_buffer(make):
    table, reference = make(), make()
    ids, grad = torch.tensor([4, 9]), draw(2, D)
    reference.update(ids, grad, torch.ones(2))
    buffers = ids.clone(), grad.clone(), torch.ones(2)
    with table.accumulate():
        table.update(*buffers)
        for buffer in buffers:
            buffer.zero_()
    assert same(everything(table), everything(reference))


def test_an_empty_block_changes_nothing(make):
    table = make()
    before = everything(table)
    with table.accumulate():
        pass
    assert same(before, everything(table))


def test_after_an_exception_nothing_that_was_held_is_applied(make):
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


def test_a_bad_gradient_in_the_block_spoils_the_whole_block(make):
    table = make()
    before = everything(table)

    def spoiled():
        with table.accumulate():
            table.update(torch.tensor([4]), torch.ones(1, D), torch.ones(1))
            table.update(torch.tensor([9]), torch.full((1, D), torch.nan), torch.ones(1))

    with pytest.raises(UsageError, match="holds NaN or inf; no row was changed"):
        spoiled()
    assert same(before, everything(table))


def test_blocks_do_not_nest_and_the_outer_one_survives_the_attempt(make):
    table, reference = make(), make()
    ids, grads = torch.tensor([4, 9]), (draw(2, D), draw(2))
    with table.accumulate():
        table.update(ids, *grads)
        with pytest.raises(UsageError) as error, table.accumulate():
            pass
        assert str(error.value) == "this table is accumulating already; leave that block first."
        assert same(everything(table), everything(reference))
    reference.update(ids, *grads)
    assert same(everything(table), everything(reference))


def test_lookup_gives_rows_whose_gradients_move_them_in_backward(make):
    table, other = make(SGD(lr=0.5)), make(SGD(lr=0.5))
    ids = torch.tensor([[4, 9], [4, 30]])
    rows = table.lookup(ids)
    assert rows.shape == (2, 2, D)
    assert torch.equal(rows.detach(), table.rows(ids.reshape(-1))[0].view(2, 2, D))
    pull = draw(2, 2, D, name="pull")
    (rows * pull).sum().backward()
    other.update(ids.reshape(-1), pull.reshape(4, D), torch.zeros(4))
    # three ranks divide by three what came to them three times
    torch.testing.assert_close(everything(other), everything(table), rtol=1e-6, atol=1e-7)


def test_live_rows_have_biases_whose_gradients_move_them_too(make):
    table, other = make(SGD(lr=0.5)), make(SGD(lr=0.5))
    ids = torch.tensor([4, 9, 4, 30])
    weight, bias = table.live_rows(ids)
    assert all(map(torch.equal, (weight.detach(), bias.detach()), table.rows(ids)))
    pull, push = draw(4, D, name="pull"), draw(4, name="push")
    ((weight * pull).sum() + (bias * push).sum()).backward()
    other.update(ids, pull, push)
    torch.testing.assert_close(everything(other), everything(table), rtol=1e-6, atol=1e-7)


def test_live_rows_of_which_only_the_weights_are_used_leave_biases_alone(make):
    table, other = make(SGD(lr=0.5)), make(SGD(lr=0.5))
    ids, pull = torch.tensor([7, 2]), draw(2, D, name="pull")
    (table.live_rows(ids)[0] * pull).sum().backward()
    other.update(ids, pull, torch.zeros(2))
    torch.testing.assert_close(everything(other), everything(table), rtol=1e-6, atol=1e-7)


def test_a_frozen_table_is_looked_up_and_does_not_move(make):
    table = make().requires_grad_(False)
    before = everything(table)
    rows = table.lookup(torch.tensor([1, 2]))
    assert not rows.requires_grad
    assert not any(part.requires_grad for part in table.live_rows(torch.tensor([1, 2])))
    assert same(before, everything(table))


def test_lookup_and_logits_inside_accumulate_are_one_update(make):
    table, other = make(), make()
    ids, grad = torch.tensor([3, 5]), draw(2, D, name="grad")
    with table.accumulate():
        for _ in range(2):
            (table.lookup(ids) * grad).sum().backward()
    other.update(ids.repeat(2), grad.repeat(2, 1), torch.zeros(4))
    torch.testing.assert_close(everything(other), everything(table), rtol=1e-6, atol=1e-7)


def test_looking_up_an_unknown_id_is_told(make):
    with pytest.raises(UsageError) as error:
        make().lookup(torch.tensor([31]))
    assert str(error.value) == "ids holds class 31; expected ids from 0 to 30 (num_classes=31)."
