"""LogUniform, and with it Uniform: the two proposals that store nothing."""

import math

import numpy as np
import pytest
import torch
from error_text import raises_text
from oracle import proposals as slow

from tapas import LogUniform, Uniform
from tapas.rng import stream

HUGE = 3_000_000_000


@pytest.mark.parametrize("num_classes", [1, 2, 3, 31, 1009])
def test_probabilities_are_those_of_the_slow_version(num_classes):
    ids = torch.arange(num_classes)
    got = LogUniform(num_classes).log_prob(ids).exp()
    np.testing.assert_allclose(got, slow.log_uniform(num_classes), rtol=1e-12)
    np.testing.assert_allclose(
        Uniform(num_classes).log_prob(ids).exp(), 1 / num_classes, rtol=1e-12
    )


@pytest.mark.parametrize("proposal", [Uniform(1), LogUniform(1)], ids=repr)
def test_a_single_class_is_certain(proposal):
    assert proposal.draw(3, generator=stream(0)).tolist() == [0, 0, 0]
    assert proposal.sample(1, generator=stream(0)).log_q.tolist() == [0]


def test_uniform_draws_cover_three_billion_classes_evenly_down_to_the_low_bits():
    """32 random bits modulo 3e9 would favour the lower 1.3e9 ids, a float32 multiples of 256."""
    ids = Uniform(HUGE).draw(100_003, generator=stream(0, "huge"))
    for cell, size in ((ids // 100_000_000, 30), (ids % 256, 256)):
        observed = np.bincount(cell.numpy(), minlength=size)
        assert slow.p_value(observed, np.full(size, 1 / size)) > 1e-6  # one seed in a million


def test_log_uniform_draws_cover_three_billion_classes_by_the_logarithm_of_their_rank():
    """A float32 on the way would make every id above 2^24 even."""
    ids = LogUniform(HUGE).draw(100_003, generator=stream(0, "huge"))
    edges = [0, *(2**i - 1 for i in range(1, 32)), HUGE]
    observed = np.histogram(ids.numpy(), bins=edges)[0]
    assert observed.sum() == len(ids)  # nothing beyond the last class
    mass = np.diff(np.log1p(edges)) / math.log1p(HUGE)
    assert slow.p_value(observed, mass) > 1e-6  # one seed in a million
    high = ids[ids > 2**25]
    odd = int((high % 2).sum())
    assert len(high) > 5_000
    assert abs(odd - len(high) / 2) < 5 * (len(high) / 4) ** 0.5  # one seed in 1.7 million


def test_log_prob_of_huge_ids_is_right_to_twelve_digits():
    """log(c + 2) - log(c + 1) by subtraction keeps six digits here, through float32 none."""
    ids = [0, 2**24, 2**24 + 1, 2**31 + 1, HUGE - 1]
    got = LogUniform(HUGE).log_prob(torch.tensor(ids))
    want = [math.log(math.log1p(1 / (c + 1)) / math.log1p(HUGE)) for c in ids]
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert got[1] > got[2]  # neighbours above 2^24 differ
    uniform = Uniform(HUGE).log_prob(torch.tensor(ids))
    np.testing.assert_allclose(uniform, -math.log(HUGE), rtol=1e-12)


@pytest.mark.parametrize("kind", [Uniform, LogUniform])
def test_bad_numbers_and_classes_are_refused(kind):
    with raises_text("num_classes must be at least 1, got 0."):
        kind(0)
    with raises_text("num_classes must be an integer, got 3.0."):
        kind(3.0)
    with raises_text("ids holds class 31; expected ids from 0 to 30 (num_classes=31)."):
        kind(31).log_prob(torch.tensor([3, 31]))
