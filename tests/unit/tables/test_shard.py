"""The rows of a shard start as the same rows of a table with all classes."""

import pytest
import torch

from tapas import LocalTable
from tapas.optim import Adagrad
from tapas.tables.placement import Placement
from tapas.tables.shard import Shard

C, D = 31, 3


def a_shard(number, num_shards=3, *, kind="random", dtype=torch.float32, bias=True):
    return Shard(
        Placement(C, num_shards, seed=7, kind=kind),
        number,
        D,
        row_optimizer=Adagrad.fused(),
        dtype=dtype,
        bias=bias,
        device=None,
    )


@pytest.mark.parametrize("numbers", [1, 4, 92, 1 << 22])
@pytest.mark.parametrize("kind", ["random", "contiguous"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_start_like_those_of_a_table_with_all_classes(numbers, kind, dtype, monkeypatch):
    """Drawn in blocks of one row, of several, of all but one, and of more than all."""
    monkeypatch.setattr("tapas.tables.shard.NUMBERS_PER_BLOCK", numbers)
    whole = LocalTable(C, D, seed=7, dtype=dtype)
    seen = []
    for number in range(3):
        shard = a_shard(number, kind=kind, dtype=dtype)
        ids = shard.table_placement.ids_of(number)
        assert shard.num_classes == len(ids)
        assert torch.equal(shard.weight, whole.weight[ids])
        assert torch.equal(shard.bias, whole.bias[ids])
        seen += ids.tolist()
    assert sorted(seen) == list(range(C))


def test_rows_drawn_in_large_blocks_equal_those_of_one_draw():
    """PyTorch draws 16 numbers or more by another algorithm than fewer."""
    dim, num_classes = 50, 300
    placement = Placement(num_classes, 2, seed=1)
    whole = LocalTable(num_classes, dim, seed=1)
    for numbers in (50, 130, 4_000, 1 << 22):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tapas.tables.shard.NUMBERS_PER_BLOCK", numbers)
            shard = Shard(
                placement,
                1,
                dim,
                row_optimizer=Adagrad.fused(),
                dtype=torch.float32,
                bias=False,
                device=None,
            )
        assert torch.equal(shard.weight, whole.weight[placement.ids_of(1)])


def test_shards_round_with_different_random_numbers():
    """The same gradient of the same row, below the spacing of bfloat16, on two shards."""
    shards = [a_shard(number, dtype=torch.bfloat16) for number in (0, 1)]
    moved = []
    for shard in shards:
        shard.weight.fill_(1.0)
        shard.update(torch.arange(10), torch.full((10, D), 1e-3), torch.zeros(10))
        moved.append(shard.weight[:10].clone())
    assert not torch.equal(*moved)
    assert shards[0].seed != shards[1].seed
