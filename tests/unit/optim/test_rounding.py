"""Stochastic rounding: right in the mean, and only where rounding is needed."""

import torch

from tapas import LocalTable
from tapas.optim import SGD
from tapas.optim.row_updates import round_to_bfloat16
from tapas.rng import stream

N, DRAWS = 31, 4000


def down(value):
    """The bfloat16 next to `value` towards zero."""
    return (value.view(torch.int32) & -(1 << 16)).view(torch.float32)


def up(value):
    """The bfloat16 after that, away from zero."""
    return (down(value).view(torch.int32) + (1 << 16)).view(torch.float32)


def test_the_mean_of_many_roundings_is_the_number_itself():
    scale = 10.0 ** torch.randint(-30, 30, (N,), generator=stream(0, "scale"))
    value = scale * torch.randn(N, generator=stream(0, "value"))
    assert bool((value < 0).any())
    low, high = down(value).double(), up(value).double()
    rounded = round_to_bfloat16(value.repeat(DRAWS, 1), stream(0, "noise")).double()
    assert bool(((rounded == low) | (rounded == high)).all())
    chance = (value.double() - low) / (high - low)
    error = ((rounded == high).double().mean(dim=0) - chance).abs()
    # 31 comparisons: a fair rounding fails 1 seed in 4,700
    assert bool((error <= 4.5 * (chance * (1 - chance) / DRAWS).sqrt()).all())


def test_numbers_that_fit_are_left_alone():
    value = torch.randn(N, generator=stream(0, "value")).bfloat16().float()
    value[:4] = torch.tensor([0.0, -0.0, 2.0**-133, -(2.0**127)])
    value = value.repeat(40_000, 1)  # noise of one bit too much shows once in 65,536
    rounded = round_to_bfloat16(value, stream(0, "noise"))
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded.float().view(torch.int32), value.view(torch.int32))


def test_infinity_and_nan_survive():
    value = torch.tensor([[torch.inf, -torch.inf, torch.nan, 1.0]]).repeat(DRAWS, 1)
    value[:, 2] = torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)  # all but inf
    rounded = round_to_bfloat16(value, stream(0, "noise")).float()
    assert bool((rounded[:, 0] == torch.inf).all())
    assert bool((rounded[:, 1] == -torch.inf).all())
    assert bool(rounded[:, 2].isnan().all())
    assert bool((rounded[:, 3] == 1).all())


def test_a_float32_table_does_not_round():
    table = LocalTable(3, 2, row_optimizer=SGD.fused(lr=1.0))
    before = table.weight.clone()
    table.update(torch.tensor([1]), torch.full((1, 2), 1e-4), torch.zeros(1))
    assert torch.equal(table.weight[1], before[1] - 1e-4)


def test_the_block_that_is_rounded_stays_as_it_was():
    value = torch.randn(N, generator=stream(0, "value"))
    before = value.clone()
    round_to_bfloat16(value, stream(0, "noise"))
    assert torch.equal(value, before)


def test_a_thousand_steps_below_the_spacing_arrive_on_average():
    """From 1 by 0.0001 to 1.1, where neighbours are 0.0078 apart: to nearest none would move."""
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


def test_the_rounding_hangs_on_the_seed_and_the_count_of_updates_alone():
    def moved(seed, skip=0):
        table = LocalTable(N, 3, row_optimizer=SGD.fused(lr=1e-4), dtype=torch.bfloat16, seed=seed)
        table.weight.fill_(1.0)
        table.num_updates = skip
        table.update(torch.arange(N), -torch.ones(N, 3), torch.zeros(N))
        return table.weight.float()

    assert torch.equal(moved(0), moved(0))
    assert not torch.equal(moved(0), moved(1))
    assert not torch.equal(moved(0), moved(0, skip=1))
