"""Row updates by native kernels against those of PyTorch."""

from contextlib import nullcontext

import pytest
import torch

import tapas.native as native
from tapas import SGD, Adagrad, LazyAdam, LocalTable, RowwiseAdagrad, stream

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
        table = LocalTable(50, dim, row_optimizer=optimizer(weight_decay=decay))
        with native.switched_off() if off else nullcontext():
            for step in range(4):
                ids = torch.randint(40, (61,), generator=stream(step, "ids"))
                table.update(ids, draw(61, dim, name=f"g{step}"), draw(61, name=f"b{step}"))
        tables.append(table.state_dict())
    for name, value in tables[0].items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, tables[1][name], rtol=1e-5, atol=1e-6)
            assert torch.equal(value[40:], tables[1][name][40:])


def test_an_optimizer_of_ones_own_is_not_taken_for_its_parent():
    class Backwards(SGD):
        def step(self, rows, grad, state, num_updates):
            rows.add_(grad)

    table = LocalTable(5, 2, row_optimizer=Backwards())
    before = table.rows(torch.arange(5))[0]
    table.update(torch.tensor([3]), torch.ones(1, 2), torch.zeros(1))
    assert torch.equal(table.rows(torch.arange(5))[0][3], before[3] + 1)


def test_autograd_notices_that_rows_have_moved():
    table = LocalTable(5, 2, row_optimizer=SGD())
    query = torch.ones(1, 2, requires_grad=True)
    score = (query @ table.weight.t()).sum()
    table.update(torch.tensor([3]), torch.ones(1, 2), torch.zeros(1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        score.backward()
