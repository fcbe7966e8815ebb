"""An alias table against the distribution that its thresholds and partners imply."""

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from oracle.proposals import alias_distribution

from tapas.proposals.alias import AliasTable
from tapas.rng import stream


def check_exact(weights: torch.Tensor) -> np.ndarray:
    table = AliasTable(weights)
    implied = alias_distribution(table.threshold.numpy(), table.partner.numpy())
    want = weights.double() / weights.double().sum()
    np.testing.assert_allclose(implied, want.numpy(), rtol=0, atol=1e-12)
    size = len(weights)
    assert table.threshold.shape == table.partner.shape == (size,)
    assert bool(((table.threshold >= 0) & (table.threshold <= 1)).all())
    assert bool(((table.partner >= 0) & (table.partner < size)).all())
    return implied


any_size = st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=53)
small_whole = st.lists(st.integers(1, 5), min_size=1, max_size=200)  # fill many buckets exactly
all_equal = st.builds(
    lambda weight, size: [weight] * size, st.floats(1e-6, 1e6), st.integers(1, 300)
)


@given(any_size | small_whole | all_equal)
@example([0.3] * 5)  # scaled to 1 - 1e-16 each: no bucket is heavy
@example([0.5, 1.2, 1.3])  # class 1 is drained by class 0 and topped up by class 2
@example([1.0] + [1e-7] * 30)
@example([1e-7] * 17 + [1.0] + [1e-7] * 13)
@example([1e-7] * 30 + [1.0])
def test_a_table_draws_exactly_the_weights_it_was_given(weights):
    check_exact(torch.tensor(weights, dtype=torch.float64))


def test_weights_are_not_changed_and_need_not_be_double():
    weights = torch.tensor([3, 1, 2], dtype=torch.float32)
    check_exact(weights)
    assert weights.tolist() == [3, 1, 2]


def test_a_million_weights_of_very_different_size_are_drawn_exactly():
    """A build by a Python loop would take seconds, one by list.pop(0) hours."""
    rank = torch.randperm(1_000_003, generator=stream(0, "ranks"))
    weights = 1 / (rank + 1.0).double()
    relative = check_exact(weights) * weights.sum().item() * (rank + 1).numpy()
    # the rare ones too, to 7 digits; the last heavy bucket takes the rounding of a million sums
    np.testing.assert_allclose(relative, 1, rtol=1e-7)


def test_no_draw_and_a_single_class_are_fine():
    table = AliasTable(torch.tensor([0.3]))
    assert table.draw(0, generator=stream(0)).shape == (0,)
    assert table.draw(5, generator=stream(0)).tolist() == [0] * 5
