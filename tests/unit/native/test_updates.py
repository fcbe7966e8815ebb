"""Row updates and sums of gradients by native kernels against PyTorch and plain loops."""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st

import tapas.native as native
from tapas import LocalTable
from tapas.optim import SGD, Adagrad, LazyAdam, RowwiseAdagrad
from tapas.optim.gradient_queue import sum_rows
from tapas.optim.row_store import RowGradients
from tapas.optim.row_updates import SGDUpdate
from tapas.rng import stream

pytestmark = pytest.mark.skipif(
    native.state() != "in use on CPUs", reason=f"native kernels are {native.state()}"
)


def draw(*shape, name):
    return torch.randn(*shape, generator=stream(0, name))


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("optimizer", [SGD, Adagrad, RowwiseAdagrad, LazyAdam])
@pytest.mark.parametrize("dim", [1, 33])
def test_rows_move_as_in_pytorch(optimizer, decay, dim, threads):
    """Several steps with repeated ids, float32 rows and biases, and all of the state."""
    tables = []
    for off in (False, True):
        table = LocalTable(50, dim, row_optimizer=optimizer.fused(weight_decay=decay))
        with native.switched_off() if off else nullcontext():
            for step in range(4):
                ids = torch.randint(40, (61,), generator=stream(step, "ids"))
                table.update(ids, draw(61, dim, name=f"g{step}"), draw(61, name=f"b{step}"))
        tables.append(table.row_tensors())
    assert tables[0].keys() == tables[1].keys()
    for name, value in tables[0].items():
        torch.testing.assert_close(value, tables[1][name], rtol=1e-5, atol=1e-6)
        assert torch.equal(value[40:], tables[1][name][40:])


def test_a_subclass_of_an_update_does_not_use_the_kernel_of_its_parent():
    @dataclass(kw_only=True, repr=False)
    class Backwards(SGDUpdate):
        def apply(self, rows, grad, state, step):
            rows.add_(grad)

    table = LocalTable(5, 2, row_optimizer=Backwards())
    before = table.rows(torch.arange(5))[0]
    table.update(torch.tensor([3]), torch.ones(1, 2), torch.zeros(1))
    assert torch.equal(table.rows(torch.arange(5))[0][3], before[3] + 1)


def test_autograd_notices_changed_rows():
    table = LocalTable(5, 2, row_optimizer=SGD.fused())
    query = torch.ones(1, 2, requires_grad=True)
    score = (query @ table.weight.t()).sum()
    table.update(torch.tensor([3]), torch.ones(1, 2), torch.zeros(1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        score.backward()


RULES = {
    "SGD": (0, (0.1, 0.0), []),
    "Adagrad": (1, (0.1, 0.0, 1e-10), [(5, 3)]),
    "RowwiseAdagrad": (2, (0.1, 0.0, 1e-10), [(5, 1)]),
    "LazyAdam": (3, (0.1, 0.0, 1e-8, 0.1, 0.999, 0.001, 1.0), [(5, 3), (5, 3)]),
}


@pytest.mark.parametrize("name", RULES)
def test_a_state_of_another_shape_is_an_error_and_nothing_is_written(name):
    rule, numbers, shapes = RULES[name]
    rows, ids, grad = draw(5, 3, name="rows"), torch.tensor([1, 4]), torch.ones(2, 3)
    wrong = [*shapes, (5, 3)], [(4, width) for _, width in shapes], shapes[1:]
    wrong += [(5, 4 - width) for _, width in shapes], [(5,) for _ in shapes]
    for bad in wrong:
        if bad == shapes:  # SGD has no state
            continue
        before, state = rows.clone(), [torch.zeros(shape) for shape in bad]
        with raises_text(
            f"the row optimizer's state has shapes {bad}; expected {shapes} for rows of shape "
            "(5, 3). No row was changed."
        ):
            native.update(rule, numbers, rows, ids, grad, state)
        assert torch.equal(rows, before)
        assert not any(part.any() for part in state)
    native.update(rule, numbers, rows, ids, grad, [torch.zeros(shape) for shape in shapes])
    assert (rows != before).any(dim=1).nonzero()[:, 0].tolist() == [1, 4]


def test_gradients_of_another_width_than_the_rows_are_an_error():
    rows = draw(5, 3, name="rows")
    with raises_text("for rows of shape (5, 3). No row was changed."):
        native.update(0, (0.1, 0.0), rows, torch.tensor([1]), torch.ones(1, 2), [])


def slow_sums(ids, grad, offset_grad):
    """{id: (sum, sum of offsets)} in float32, summed in order."""
    found = {}
    for place, row in enumerate(ids.tolist()):
        mine, offset = grad[place].numpy(), offset_grad[place].numpy()
        before = found.get(row)
        found[row] = (mine, offset) if before is None else (before[0] + mine, before[1] + offset)
    return dict(sorted(found.items()))


def check_sums(ids, grad, offset_grad, num_rows):
    """Check that the sums equal the loop bit by bit, with any number of threads."""
    found, total, offset_total, square = native.sum_rows(ids, grad, offset_grad, num_rows)
    want = slow_sums(ids, grad, offset_grad)
    assert found.tolist() == list(want)
    assert (total.shape, offset_total.shape) == ((len(want), grad.shape[1]), (len(want),))
    for place, (row, offset) in enumerate(want.values()):
        np.testing.assert_array_equal(total[place].numpy(), row)
        assert offset_total[place] == offset
    exact = sum(float((r.astype(float) ** 2).sum() + float(o) ** 2) for r, o in want.values())
    assert square == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("count", "num_rows", "dim"),
    [(1, 1, 1), (7, 1, 3), (61, 40, 33), (129, 2049, 17), (5000, 700, 65), (3001, 4_194_305, 48)],
)
def test_gradients_of_repeated_ids_are_summed_as_in_a_loop(count, num_rows, dim, threads):
    """Also with several threads, and with ids of two and three digits of the radix sort."""
    ids = torch.randint(num_rows, (count,), generator=stream(0, "ids"))
    ids[-1] = num_rows - 1
    check_sums(ids, draw(count, dim, name="g"), draw(count, name="b"), num_rows)


@given(
    ids=st.lists(st.integers(0, 12), max_size=40),
    far=st.sampled_from([1, 2**11, 2**33, 2**58]),
    dim=st.integers(1, 9),
)
def test_large_ids_are_distinguished(ids, far, dim):
    ids = torch.tensor(ids, dtype=torch.int64) * far
    check_sums(ids, draw(len(ids), dim, name="g"), draw(len(ids), name="b"), 13 * far)


def test_the_sum_of_no_gradients_is_empty(threads):
    found = native.sum_rows(torch.empty(0, dtype=torch.int64), torch.empty(0, 3), torch.empty(0), 5)
    assert [part.shape for part in found[:3]] == [(0,), (0, 3), (0,)]
    assert found[3] == 0.0


def test_gradients_that_are_not_contiguous_are_summed_correctly():
    ids = torch.tensor([3, 0, 1, 0, 3, 2])[::2]
    grad, offset = draw(5, 3, name="g").t(), draw(3, 2, name="b")[:, 1]
    assert not any(part.is_contiguous() for part in (ids, grad, offset))
    check_sums(ids, grad, offset, 4)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("part", [1, 2], ids=["rows", "offsets"])
def test_a_gradient_that_is_not_finite_shows_in_the_sum_of_squares(bad, part):
    given = [torch.tensor([4, 1, 4]), draw(3, 2, name="g"), draw(3, name="b"), 5]
    given[part].view(3, -1)[2, 0] = bad
    assert not np.isfinite(native.sum_rows(*given)[3])


def test_pytorch_finds_the_same_sums():
    """For several parts, as from several calls in one backward pass."""
    parts = []
    for number, count in enumerate((5, 61, 0, 1)):
        ids = torch.randint(40, (count,), generator=stream(number, "ids"))
        weight, bias = draw(count, 7, name=f"g{number}"), draw(count, name=f"b{number}")
        parts.append((RowGradients(ids, weight, bias), None))
    fast, square = sum_rows(parts, 40)
    with native.switched_off():
        slow, slow_square = sum_rows(parts, 40)
    assert torch.equal(fast.ids, slow.ids)
    torch.testing.assert_close(fast, slow)
    assert square == pytest.approx(slow_square, rel=1e-6)
