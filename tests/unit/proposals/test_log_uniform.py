"""LogUniform, and with it Uniform: the two proposals that store nothing."""

import math
import re

import numpy as np
import pytest
import torch
from oracle import proposals as slow

from tapas import LogUniform, Uniform, UsageError
from tapas.rng import stream

HUGE = 3_000_000_000


@pytest.mark.parametrize("num_classes", [1, 2, 3, 31, 1009])
def test_log_uniform_is_the_slow_version(num_classes):
    got = LogUniform(num_classes).log_prob(torch.arange(num_classes)).exp()
    np.testing.assert_allclose(got, slow.log_uniform(num_classes), rtol=1e-12)


@pytest.mark.parametrize("num_classes", [1, 2, 31, 1009])
def test_uniform_gives_every_class_its_share(num_classes):
    got = Uniform(num_classes).log_prob(torch.arange(num_classes)).exp()
    np.testing.assert_allclose(got, 1 / num_classes, rtol=1e-12)


@pytest.mark.parametrize("proposal", [Uniform(1), LogUniform(1)], ids=repr)
def test_a_single_class_is_certain(proposal):
    assert proposal.log_prob(torch.tensor([0])).item() == pytest.approx(0, abs=1e-15)
    assert proposal.draw(3, generator=stream(0)).tolist() == [0, 0, 0]
    assert proposal.sample(1, generator=stream(0)).log_q.tolist() == [0]


def test_uniform_draws_cover_three_billion_classes_evenly():
    """A 32-bit draw taken modulo 3e9 would hit the lower 1.3e9 ids twice as often."""
    ids = Uniform(HUGE).draw(100_003, generator=stream(0, "huge"))
    observed = np.bincount((ids // 100_000_000).numpy(), minlength=30)
    assert len(observed) == 30
    assert slow.chance_of(observed, np.full(30, 1 / 30)) > 1e-6  # fails one seed in a million
    assert int(ids.max()) > 2**31
    assert int((ids > 2**31).sum()) > 0


def test_the_low_bits_of_huge_ids_are_uniform_too():
    """Ids made from a float32 would be multiples of 256 above 2^31."""
    ids = Uniform(HUGE).draw(100_003, generator=stream(0, "low bits"))
    observed = np.bincount((ids % 256).numpy(), minlength=256)
    assert slow.chance_of(observed, np.full(256, 1 / 256)) > 1e-6  # one seed in a million


def test_log_uniform_draws_cover_three_billion_classes_by_the_logarithm_of_their_rank():
    proposal = LogUniform(HUGE)
    ids = proposal.draw(100_003, generator=stream(0, "huge"))
    edges = [0, *(2**i - 1 for i in range(1, 32)), HUGE]
    observed = np.histogram(ids.numpy(), bins=edges)[0]
    assert observed.sum() == len(ids)  # nothing beyond the last class
    mass = np.diff(np.log1p(edges)) / math.log1p(HUGE)
    assert slow.chance_of(observed, mass) > 1e-6  # one seed in a million
    assert int(ids.max()) > 2**31


def test_log_uniform_draws_odd_and_even_ids_alike_above_two_to_the_24():
    """A float32 on the way would make every id above 2^24 even."""
    ids = LogUniform(HUGE).draw(60_013, generator=stream(0, "parity"))
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
    assert got[1] > got[2]  # neighbours above 2^24 are told apart
    uniform = Uniform(HUGE).log_prob(torch.tensor(ids))
    np.testing.assert_allclose(uniform, -math.log(HUGE), rtol=1e-12)


def test_probabilities_below_one_in_a_million_are_not_clipped():
    """Peers clip q at 1e-6 and get every class beyond a million wrong."""
    for proposal in (Uniform(HUGE), LogUniform(HUGE)):
        sample = proposal.sample(101, generator=stream(0, "clip"))
        tries = torch.log1p(-sample.log_q.double().exp()) / torch.log1p(
            -proposal.log_prob(sample.ids).exp()
        )
        assert bool((proposal.log_prob(sample.ids[-50:]) < math.log(1e-6)).all())
        # every id tells of the same number of draws, to the precision of a float32 log_q
        rare = proposal.log_prob(sample.ids) < math.log(1e-3)
        torch.testing.assert_close(
            tries[rare], tries[rare].round().median().expand_as(tries[rare]), rtol=1e-5, atol=0
        )


@pytest.mark.parametrize("kind", [Uniform, LogUniform])
def test_the_number_of_classes_must_be_a_positive_whole_number(kind):
    with pytest.raises(UsageError, match=re.escape("num_classes must be at least 1, got 0.")):
        kind(0)
    with pytest.raises(UsageError, match=re.escape("num_classes must be a whole number, got 3.0.")):
        kind(3.0)


@pytest.mark.parametrize("kind", [Uniform, LogUniform])
def test_log_prob_of_a_class_that_does_not_exist_is_refused(kind):
    words = "ids holds class 31; expected ids from 0 to 30 (num_classes=31)."
    with pytest.raises(UsageError, match=re.escape(words)):
        kind(31).log_prob(torch.tensor([3, 31]))


def test_repr_is_how_it_was_built():
    assert repr(Uniform(31)) == "Uniform(31)"
    assert repr(LogUniform(31)) == "LogUniform(31)"
