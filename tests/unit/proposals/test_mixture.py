import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import proposals as slow

from tapas import LogUniform, Mixture, Squashed, Uniform, UsageError
from tapas.proposals import Bigram
from tapas.rng import stream

C = 31
COUNTS = [0] * 20 + [50, 9] + [0] * 9
PARTS = [Uniform(C), LogUniform(C), Squashed(COUNTS, beta=1e-9)]
DENSE = [np.full(C, 1 / C), slow.log_uniform(C), slow.squashed(COUNTS, 1, 1e-9)]


@given(st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=3))
def test_a_mixture_is_the_weighted_mean_of_its_parts(weights):
    got = Mixture(PARTS, weights).log_prob(torch.arange(C)).exp()
    np.testing.assert_allclose(got, slow.mixture(DENSE, weights), rtol=1e-11)


def test_without_weights_every_part_counts_alike():
    got = Mixture(PARTS).log_prob(torch.arange(C)).exp()
    np.testing.assert_allclose(got, slow.mixture(DENSE, [1, 1, 1]), rtol=1e-12)


def test_draws_come_from_each_part_in_proportion_to_its_weight():
    ids = Mixture(PARTS, [1, 2, 7]).draw(20_011, generator=stream(0, "mixture"))
    observed = np.bincount(ids.numpy(), minlength=C)
    # fails one seed in a million
    assert slow.chance_of(observed, slow.mixture(DENSE, [1, 2, 7])) > 1e-6


def test_the_part_of_a_draw_does_not_hang_on_its_position():
    """Draws of one part must not stand together: a sample cuts the draws by position."""
    ids = Mixture([Squashed([1] + [0] * 30, beta=1e-9), Squashed([0, 1] + [0] * 29, beta=1e-9)])
    drawn = ids.draw(10_007, generator=stream(0, "order"))
    halves = [int((half == 0).sum()) for half in (drawn[:5_003], drawn[5_003:])]
    assert abs(halves[0] - halves[1]) < 5 * (10_007 / 4) ** 0.5  # fails one seed in 1.7 million


def test_a_mixture_of_mixtures_is_the_mixture_of_all_parts():
    nested = Mixture([Mixture(PARTS[:2], [1, 3]), PARTS[2]], [4, 6])
    flat = Mixture(PARTS, [1, 3, 6])
    ids = torch.arange(C)
    torch.testing.assert_close(nested.log_prob(ids), flat.log_prob(ids))


def test_a_batch_reaches_the_parts_that_look_at_it_and_the_weights_stay():
    pair = (torch.tensor([3]), torch.tensor([8]), torch.tensor([5.0]))
    mixed = Mixture([Bigram(*pair, unigram=Uniform(C)), LogUniform(C)], [1, 3])
    got = mixed.given(torch.tensor([3, -1])).log_prob(torch.arange(C)).exp()
    bigram = slow.bigram([(3, 8, 5.0)], [3, -1], np.full(C, 1 / C), 1.0)
    np.testing.assert_allclose(got, slow.mixture([bigram, DENSE[1]], [1, 3]), rtol=1e-12)


def test_repr_shows_the_parts_and_their_shares():
    assert repr(Mixture([Uniform(C), LogUniform(C)], [1, 3])) == (
        "Mixture(0.25 Uniform(31), 0.75 LogUniform(31))"
    )


@pytest.mark.parametrize(
    ("parts", "weights", "words"),
    [
        ([], None, "a mixture needs at least one proposal, got none."),
        (
            [Uniform(31), Uniform(30)],
            None,
            "the parts of a mixture must share num_classes, got [31, 30].",
        ),
        (
            [Uniform(31), LogUniform(31)],
            [1.0],
            "a mixture of 2 proposals needs as many weights, each finite and above 0, got [1.0].",
        ),
        (
            [Uniform(31), LogUniform(31)],
            [1.0, 0.0],
            "a mixture of 2 proposals needs as many weights, each finite and above 0, "
            "got [1.0, 0.0].",
        ),
        (
            [Uniform(31)],
            [float("inf")],
            "a mixture of 1 proposals needs as many weights, each finite and above 0, got [inf].",
        ),
        (
            [Uniform(31)],
            [float("nan")],
            "a mixture of 1 proposals needs as many weights, each finite and above 0, got [nan].",
        ),
    ],
)
def test_bad_parts_and_weights_are_refused_in_these_words(parts, weights, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        Mixture(parts, weights)
