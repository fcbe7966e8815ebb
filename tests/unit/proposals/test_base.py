import math

import numpy as np
import pytest
import torch
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st
from oracle import proposals as slow

from tapas import LogUniform, Mixture, Proposal, Squashed, Uniform
from tapas.proposals import base
from tapas.proposals.base import first_draws
from tapas.rng import stream


@pytest.fixture(autouse=True)
def _few_classes_are_drawn_like_many(monkeypatch):
    """Otherwise all small samples of these tests would be drawn by arrival times."""
    monkeypatch.setattr(base, "RACE_BELOW", 0)


class Scripted(Proposal):
    """Returns the draws of `script` in order and ignores the generator."""

    def __init__(self, script, prob):
        self.script, self.prob, self.used = list(script), dict(enumerate(prob)), 0
        self.num_classes = len(prob)

    def draw(self, k, *, generator):
        drawn = self.script[self.used : self.used + k]
        drawn += [0] * (k - len(drawn))  # not used; otherwise the oracle fails
        self.used += k
        return torch.tensor(drawn)

    def log_prob(self, ids):
        return torch.tensor([self.prob[i] for i in ids.tolist()], dtype=torch.float64).log()

    def __repr__(self):
        return "Scripted"


def check_against_the_loop(script, prob, k):
    sample = Scripted(script, prob).sample(k, generator=stream(0))
    ids, expected = slow.draw_until_distinct(script, k, prob)
    assert sample.ids.tolist() == ids
    torch.testing.assert_close(sample.log_q.exp(), torch.tensor(expected, dtype=torch.float32))


@given(st.integers(1, 7), st.integers(0, 10**6))
def test_drawing_until_distinct_is_the_plain_loop_over_the_same_draws(k, seed):
    prob = slow.log_uniform(31)
    script = np.random.default_rng(seed).choice(31, size=2_000, p=prob).tolist()
    check_against_the_loop(script, prob, k)


def test_repeats_count_as_draws_across_many_rounds_of_drawing():
    """Three classes for 150 draws, then a fourth: T is 151, not the number of rounds or ids."""
    prob = np.full(31, 0.01 / 28)
    prob[[5, 2, 30]] = 0.33
    check_against_the_loop([5, 2, 30] * 50 + [17] + [4, 3, 1] * 99, prob, 4)


def test_a_class_with_almost_no_mass_is_kept_when_drawn_however_high_its_id():
    """Peers sort the distinct draws and keep the first k: high ids are then never drawn."""
    prob = np.full(31, 1 / 30)
    prob[30] = 1e-12
    prob /= prob.sum()
    sample = Scripted([30, *range(30)], prob).sample(5, generator=stream(0))
    assert sample.ids.tolist() == [0, 1, 2, 3, 30]
    assert sample.log_q[-1].item() == pytest.approx(math.log(5e-12), rel=1e-5)


HUGE = 3_000_000_000
FEW = (torch.tensor([7, 2**31 + 11, HUGE - 1]), torch.tensor([4, 3, 3]) * 10**8)


@pytest.mark.parametrize(
    "proposal",
    [
        Uniform(HUGE),
        LogUniform(HUGE),
        Squashed(FEW, num_classes=HUGE),
        Mixture([Uniform(HUGE), Squashed(FEW, num_classes=HUGE)]),
    ],
    ids=repr,
)
def test_expected_counts_are_those_of_the_loop_for_three_billion_classes(proposal):
    """q is 3e-10 here: clipped at 1e-6 it is wrong, and 1 - q in float32 is 1, the count 0."""
    sample = proposal.sample(211, generator=stream(0, "huge"))
    drawn = proposal.draw(first_draws(211), generator=stream(0, "huge"))
    prob = dict(zip(drawn.tolist(), proposal.log_prob(drawn).exp().tolist(), strict=True))
    ids, expected = slow.draw_until_distinct(drawn.tolist(), 211, prob)
    assert sample.ids.tolist() == ids
    assert ids[-1] > 2**31
    assert min(prob.values()) < 1e-9
    if isinstance(proposal, Uniform):  # all classes are equal, however many draws it took
        expected = np.full(211, 211 / HUGE)
    np.testing.assert_allclose(sample.log_q, np.log(expected), rtol=1e-6, atol=1e-7)


def test_a_proposal_with_all_mass_on_one_class_raises_or_uses_arrival_times():
    """9 of 31 classes are drawn by arrival times, for which the skew of Q does not matter."""
    proposal = Squashed([1] + [0] * 30, alpha=1.0, beta=1e-300)
    with raises_text(
        "Squashed(31 classes, 1 above the floor, alpha=1, beta=1e-300) gave only 1 of 5 "
        "distinct classes in 101000 draws: its mass is on too few classes. Raise beta, lower "
        "alpha, mix in a Uniform, or ask for fewer samples."
    ):
        proposal.sample(5, generator=stream(0))
    sample = proposal.sample(9, generator=stream(0))
    assert sample.ids[0] == 0
    assert len(sample) == 9
    assert sample.log_q[0] == 0
    assert bool(sample.log_q.isfinite().all())


def test_arrival_times_of_just_enough_classes_are_certain_and_of_fewer_refused():
    sample = Scripted([], [0, 0.25, 0, 0.25, 0.5] + [0] * 6).sample(3, generator=stream(0))
    assert sample.ids.tolist() == [1, 3, 4]
    assert sample.log_q.tolist() == [0, 0, 0]
    with raises_text(
        "Scripted gives fewer than 4 classes a positive probability. "
        "Mix in a Uniform, or ask for fewer samples."
    ):
        Scripted([], [0.25, 0.25, 0.5] + [0] * 8).sample(4, generator=stream(0))


def test_a_class_whose_probability_rounds_above_one_is_certain_not_nan():
    certain = Squashed([1] + [0] * 30, alpha=1.0, beta=1e-300)
    proposal = Mixture([certain] * 3, [0.3] * 3)
    assert proposal.log_prob(torch.tensor([0])).item() > 0  # by 2e-16, the case in question
    assert proposal.sample(1, generator=stream(0)).log_q.tolist() == [0]


def test_few_classes_use_arrival_times_for_any_number_of_samples(monkeypatch):
    monkeypatch.setattr(base, "RACE_BELOW", 31)
    proposal = Squashed([1] + [0] * 30, alpha=1.0, beta=1e-300)  # drawing would not end
    assert proposal.sample(2, generator=stream(0)).ids[0] == 0


def test_an_impossible_number_of_samples_and_a_seed_for_a_generator_are_refused():
    with raises_text("number of samples must be at least 1, got 0."):
        Uniform(31).sample(0, generator=stream(0))
    with raises_text("number of samples must be an integer, got 2.5."):
        Uniform(31).sample(2.5, generator=stream(0))
    with raises_text("generator must be a torch.Generator, got int"):
        Uniform(31).sample(3, generator=0)
