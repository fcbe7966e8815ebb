import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle.proposals import alias_distribution, chance_of

from tapas.proposals.alias import AliasTable
from tapas.rng import stream


def implied(table: AliasTable) -> np.ndarray:
    return alias_distribution(table.threshold.numpy(), table.partner.numpy())


def check_exact(weights: torch.Tensor) -> AliasTable:
    table = AliasTable(weights)
    want = weights.double() / weights.double().sum()
    np.testing.assert_allclose(implied(table), want.numpy(), rtol=0, atol=1e-12)
    size = len(weights)
    assert table.threshold.shape == table.partner.shape == (size,)
    assert bool(((table.threshold >= 0) & (table.threshold <= 1)).all())
    assert bool(((table.partner >= 0) & (table.partner < size)).all())
    return table


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=53))
def test_a_table_draws_exactly_the_weights_it_was_given(weights):
    check_exact(torch.tensor(weights, dtype=torch.float64))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=200))
def test_small_whole_weights_which_fill_many_buckets_exactly_are_drawn_exactly(weights):
    check_exact(torch.tensor(weights))


@given(st.floats(1e-6, 1e6), st.integers(1, 300))
def test_equal_weights_are_drawn_alike_though_their_mean_rounds_above_them(weight, size):
    check_exact(torch.full((size,), weight, dtype=torch.float64))


def test_equal_weights_that_all_round_below_their_mean_still_build():
    """5 x 0.3: the scaled weights are 1 - 1e-16 each, and no bucket is heavy."""
    weights = torch.full((5,), 0.3, dtype=torch.float64)
    assert bool((weights * (5 / weights.sum()) < 1).all())
    check_exact(weights)


@pytest.mark.parametrize("giant", [0, 17, 30])
def test_one_giant_tops_up_every_other_bucket_wherever_it_stands(giant):
    weights = torch.full((31,), 1e-7, dtype=torch.float64)
    weights[giant] = 1.0
    table = check_exact(weights)
    others = torch.arange(31) != giant
    assert bool((table.partner[others] == giant).all())


def test_a_heavy_class_that_was_drained_is_topped_up_by_the_next_one():
    """0.5 of class 0 is lacking; class 1 has 0.2 to spare and needs 0.3 back from class 2."""
    table = check_exact(torch.tensor([0.5, 1.2, 1.3], dtype=torch.float64))
    torch.testing.assert_close(table.threshold, torch.tensor([0.5, 0.7, 1.0]).double())
    assert table.partner.tolist()[:2] == [1, 2]


def test_weights_are_not_changed_and_need_not_be_double():
    weights = torch.tensor([3, 1, 2], dtype=torch.float32)
    check_exact(weights)
    assert weights.tolist() == [3, 1, 2]


def test_a_million_weights_of_very_different_size_are_drawn_exactly():
    """A build by a Python loop would take seconds, one by list.pop(0) hours."""
    rank = torch.randperm(1_000_003, generator=stream(0, "ranks"))
    table = check_exact(1 / (rank + 1.0).double())
    relative = implied(table) * (1 / (rank + 1.0).double()).sum().item() * (rank + 1).numpy()
    # the rare ones too, to 7 digits; the last heavy bucket takes the rounding of a million sums
    np.testing.assert_allclose(relative, 1, rtol=1e-7)


def test_draws_follow_the_weights():
    weights = torch.tensor([0.1, 7, 1, 1, 3, 0.5, 12, 0.01, 2, 2, 5], dtype=torch.float64)
    drawn = AliasTable(weights).draw(30_011, generator=stream(0, "alias"))
    assert drawn.dtype == torch.int64
    observed = np.bincount(drawn.numpy(), minlength=11)
    # a correct table fails one seed in a million
    assert chance_of(observed, (weights / weights.sum()).numpy()) > 1e-6


def test_no_draw_and_a_single_class_are_fine():
    table = AliasTable(torch.tensor([0.3]))
    assert table.draw(0, generator=stream(0)).shape == (0,)
    assert table.draw(5, generator=stream(0)).tolist() == [0] * 5
