"""Memory of steps is used again, but never while somebody still holds it."""

import gc

import pytest
import torch

from tapas import TapasSoftmax
from tapas.native import work_memory as module
from tapas.native.work_memory import LARGEST, MOST_SPARE, work_memory


@pytest.fixture(autouse=True)
def no_spare(monkeypatch):
    monkeypatch.setattr(module, "_spare", {})
    monkeypatch.setattr(module, "SMALLEST", 4)


def test_memory_is_used_again_by_the_next_of_its_size():
    memory = work_memory(1001)
    assert (memory.dtype, memory.shape) == (torch.float32, (1001,))
    address, view = memory.data_ptr(), memory[3:5]
    del memory
    assert work_memory(1001).data_ptr() != address, "a view holds it"
    del view
    assert work_memory(999).data_ptr() != address
    assert work_memory(1001).data_ptr() == address


def test_little_is_kept():
    for size in range(1, 99):
        work_memory(size)
        assert len(module._spare) <= MOST_SPARE
    work_memory(LARGEST // 4 + 1)
    assert max(module._spare) < 99


@pytest.mark.parametrize("dim", [5, 96])
def test_graphs_keep_their_memory(dim):
    """Losses of later steps, and a second backward pass, change no gradient of an earlier one."""
    head = TapasSoftmax(301, dim, num_samples=70, presample_factor=1, seed=3)
    head.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(33, dim, generator=generator).requires_grad_()
    target = torch.randint(301, (33,), generator=generator)
    loss = head(query, target)
    first = torch.autograd.grad(loss, query, retain_graph=True)[0]
    for _ in range(3):
        head(query * 9, target).backward()
        gc.collect()
    assert torch.equal(torch.autograd.grad(loss, query)[0], first)
