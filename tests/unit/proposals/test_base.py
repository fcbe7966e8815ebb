import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import proposals as slow
from scipy import stats

from tapas import LogUniform, Mixture, Proposal, Squashed, Uniform, UsageError
from tapas.proposals import base
from tapas.rng import stream


@pytest.fixture(autouse=True)
def _few_classes_are_drawn_like_many(monkeypatch):
    """Or the small sizes of these tests would all be races."""
    monkeypatch.setattr(base, "RACE_BELOW", 0)


class Scripted(Proposal):
    """Hands out `script` one draw after another, whatever the generator says."""

    def __init__(self, script, prob):
        self.script, self.prob, self.used = list(script), dict(enumerate(prob)), 0
        self.num_classes = len(prob)

    def draw(self, k, *, generator):
        drawn = self.script[self.used : self.used + k]
        drawn += [0] * (k - len(drawn))  # the rest is not looked at, or the oracle complains
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


def test_draws_after_the_last_needed_one_neither_enter_nor_count():
    """The first round draws 4 + 1 + 8 classes at once; only the first four may matter."""
    prob = np.full(31, 1 / 31)
    script = [30, 8, 19, 11, 0, 1, 2, 3, 4, 5, 6, 7, 9]
    sample = Scripted(script, prob).sample(4, generator=stream(0))
    assert sample.ids.tolist() == [8, 11, 19, 30]
    torch.testing.assert_close(sample.log_q.exp(), torch.full((4,), 1 - (30 / 31) ** 4))


def test_a_rare_class_with_a_high_id_is_not_cut_off_a_sorted_sample():
    """Peers sort the distinct draws and keep the first k: high ids are then never drawn."""
    proposal, samples, k = Uniform(211), 600, 50
    seen = torch.zeros(211)
    generator = stream(0, "cut")
    for _ in range(samples):
        seen[proposal.sample(k, generator=generator).ids] += 1
    share = k / 211
    error = (seen / samples - share) / math.sqrt(share * (1 - share) / samples)
    assert float(error.abs().max()) < stats.norm.isf(0.5e-4 / 211)  # fails one seed in 10,000


def test_a_class_with_all_but_no_mass_is_drawn_in_its_turn_however_high_its_id():
    """Given its draw, the rarest class is kept: the cut is by order of appearance."""
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
def test_expected_counts_are_those_of_the_loop_for_three_billion_classes(proposal, monkeypatch):
    """q is 3e-10 here: clipped at 1e-6 it is wrong, and 1 - q in float32 is 1, the count 0."""
    drawn, draw = [], proposal.draw

    def recorded(k, *, generator):
        drawn.append(draw(k, generator=generator))
        return drawn[-1]

    monkeypatch.setattr(proposal, "draw", recorded)
    sample = proposal.sample(211, generator=stream(0, "huge"))
    drawn = torch.cat(drawn)
    prob = dict(zip(drawn.tolist(), proposal.log_prob(drawn).exp().tolist(), strict=True))
    ids, expected = slow.draw_until_distinct(drawn.tolist(), 211, prob)
    assert sample.ids.tolist() == ids
    assert ids[-1] > 2**31
    assert min(prob.values()) < 1e-9
    np.testing.assert_allclose(sample.log_q, np.log(expected), rtol=1e-6, atol=1e-7)


def test_ids_above_two_to_the_24_stay_distinct_and_exact():
    """A float32 on the way would make every id above 2^24 even."""
    proposal = Squashed(near_the_top(), num_classes=2**24 + 5_003)
    ids = proposal.sample(2_003, generator=stream(0, "exact")).ids
    high = ids[ids >= 2**24]
    assert len(high) > 1_500
    assert len(high.unique()) == len(high)
    odd = int((high % 2).sum())
    assert abs(odd - len(high) / 2) < 5 * (len(high) / 4) ** 0.5  # fails one seed in 1.7 million


def near_the_top():
    """Neighbouring ids around 2^24, every one of them equally frequent."""
    ids = torch.arange(2**24, 2**24 + 4_999)
    return ids, torch.full((4_999,), 10**6)


def test_a_hopelessly_concentrated_proposal_ends_with_an_error():
    proposal = Squashed([1] + [0] * 30, beta=1e-300)
    words = (
        "Squashed(31 classes, 1 above the floor, alpha=1, beta=1e-300) gave only 1 distinct "
        "classes of 5 in 153344 draws: its mass sits on too few of them. Raise beta, lower alpha, "
        "mix in a Uniform, or ask for fewer samples."
    )
    with pytest.raises(UsageError, match=re.escape(words)):
        proposal.sample(5, generator=stream(0))


def test_a_concentrated_proposal_still_ends_where_many_classes_are_asked_for():
    """Nine of 31 is the race, whose cost does not hang on how skewed Q is."""
    sample = Squashed([1] + [0] * 30, beta=1e-300).sample(9, generator=stream(0))
    assert sample.ids[0] == 0
    assert len(sample) == 9
    assert sample.log_q[0] == 0
    assert bool(sample.log_q.isfinite().all())


def test_a_proposal_that_leaves_classes_out_is_told_so_by_the_race():
    proposal = Scripted([], [0.25, 0.25, 0.5] + [0] * 8)
    words = (
        "Scripted gives fewer than 4 classes a positive probability. "
        "Mix in a Uniform, or ask for fewer samples."
    )
    with pytest.raises(UsageError, match=re.escape(words)):
        proposal.sample(4, generator=stream(0))


def test_a_race_among_exactly_as_many_classes_as_asked_for_is_certain():
    sample = Scripted([], [0, 0.25, 0, 0.25, 0.5] + [0] * 6).sample(3, generator=stream(0))
    assert sample.ids.tolist() == [1, 3, 4]
    assert sample.log_q.tolist() == [0, 0, 0]


def test_a_class_whose_probability_rounds_above_one_is_certain_not_nan():
    certain = Squashed([1] + [0] * 30, beta=1e-300)
    proposal = Mixture([certain] * 3, [0.3] * 3)
    assert proposal.log_prob(torch.tensor([0])).item() > 0  # by 2e-16, the case in question
    assert proposal.sample(1, generator=stream(0)).log_q.tolist() == [0]


def test_few_classes_race_whatever_the_number_of_samples(monkeypatch):
    monkeypatch.setattr(base, "RACE_BELOW", 31)
    proposal = Squashed([1] + [0] * 30, beta=1e-300)  # drawing would take for ever
    assert proposal.sample(2, generator=stream(0)).ids[0] == 0


@pytest.mark.parametrize(
    ("k", "words"),
    [
        (0, "number of samples must be at least 1, got 0."),
        (2.5, "number of samples must be a whole number, got 2.5."),
        (32, "cannot draw 32 distinct classes from 31. Ask for fewer."),
    ],
)
def test_an_impossible_number_of_samples_is_refused(k, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        Uniform(31).sample(k, generator=stream(0))


def test_a_seed_in_place_of_a_generator_is_refused():
    words = (
        "generator must be a torch.Generator, got int. tapas.rng.stream(seed, 'name') makes one."
    )
    with pytest.raises(UsageError, match=re.escape(words)):
        Uniform(31).sample(3, generator=0)


def test_a_proposal_needs_both_methods():
    class Half(Proposal):
        def draw(self, k, *, generator):
            return torch.zeros(k, dtype=torch.int64)

    with pytest.raises(TypeError, match="log_prob"):
        Half()
