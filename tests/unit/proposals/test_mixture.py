import numpy as np
import torch
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st
from oracle import proposals as slow

from tapas import LogUniform, Mixture, Squashed, Uniform
from tapas.proposals import Bigram
from tapas.rng import stream

C = 31
COUNTS = [0] * 20 + [50, 9] + [0] * 9
PARTS = [Uniform(C), LogUniform(C), Squashed(COUNTS, alpha=1.0, beta=1e-9)]
DENSE = [np.full(C, 1 / C), slow.log_uniform(C), slow.squashed(COUNTS, 1, 1e-9)]


@given(st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=3))
def test_a_mixture_is_the_weighted_mean_of_its_parts(weights):
    got = Mixture(PARTS, weights).log_prob(torch.arange(C)).exp()
    np.testing.assert_allclose(got, slow.mixture(DENSE, weights), rtol=1e-11)


def test_without_weights_all_parts_are_equal():
    got = Mixture(PARTS).log_prob(torch.arange(C)).exp()
    np.testing.assert_allclose(got, slow.mixture(DENSE, [1, 1, 1]), rtol=1e-12)


def test_the_part_of_a_draw_does_not_depend_on_its_position():
    """Draws of one part must not be adjacent: a sample cuts the draws by position."""
    ids = Mixture([Squashed([1] + [0] * 30, beta=1e-9), Squashed([0, 1] + [0] * 29, beta=1e-9)])
    drawn = ids.draw(10_007, generator=stream(0, "order"))
    halves = [int((half == 0).sum()) for half in (drawn[:5_003], drawn[5_003:])]
    assert abs(halves[0] - halves[1]) < 5 * (10_007 / 4) ** 0.5  # fails one seed in 1.7 million


def test_a_batch_reaches_the_parts_that_use_it_and_the_weights_stay():
    pair = (torch.tensor([3]), torch.tensor([8]), torch.tensor([5.0]))
    mixed = Mixture([Bigram(*pair, unigram=Uniform(C)), LogUniform(C)], [1, 3])
    got = mixed.conditioned_on(torch.tensor([3, -1])).log_prob(torch.arange(C)).exp()
    bigram = slow.bigram([(3, 8, 5.0)], [3, -1], np.full(C, 1 / C), 1.0)
    np.testing.assert_allclose(got, slow.mixture([bigram, DENSE[1]], [1, 3]), rtol=1e-12)


def test_bad_parts_and_weights_are_refused():
    with raises_text("a mixture needs at least one proposal, got none."):
        Mixture([])
    with raises_text("the parts of a mixture must be proposals, got 3."):
        Mixture([Uniform(31), 3])
    with raises_text("the parts of a mixture must share num_classes, got [31, 30]."):
        Mixture([Uniform(31), Uniform(30)])
    for parts, weights in (
        ([Uniform(31), LogUniform(31)], [1.0]),
        ([Uniform(31), LogUniform(31)], [1.0, 0.0]),
        ([Uniform(31)], [float("inf")]),
        ([Uniform(31)], [float("nan")]),
    ):
        with raises_text(
            f"a mixture of {len(parts)} proposals needs as many weights, each finite and above 0, "
            f"got {weights}."
        ):
            Mixture(parts, weights)
