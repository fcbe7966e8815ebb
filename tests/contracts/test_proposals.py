"""The contract of `Proposal`, tested for all implementations and for one written by a user.

Seeds are fixed, so nothing here fails by chance from run to run; the rates in the
comments say how often a correct proposal would fail under fresh seeds.
"""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from error_text import raises_text
from oracle.proposals import p_value
from scipy import stats

from tapas import LogUniform, Mixture, Proposal, Squashed, Uniform
from tapas.proposals import Bigram, ByRank, base
from tapas.rng import stream

C = 31
SPARSE, DENSE = 7, 9  # 4 * 7 < 31: drawn until distinct; 4 * 9 >= 31: by arrival times


class Ramp(Proposal):
    """A proposal written by a user, with the two methods required: Q(c) ∝ c + C."""

    def __init__(self, num_classes: int):
        self.num_classes = num_classes

    def draw(self, k, *, generator):
        u = torch.rand(k, generator=generator, dtype=torch.float64)
        return torch.searchsorted(self._prob().cumsum(0), u).clamp_(max=self.num_classes - 1)

    def log_prob(self, ids):
        return self._prob().log()[ids]

    def _prob(self):
        weight = torch.arange(self.num_classes, 2 * self.num_classes, dtype=torch.float64)
        return weight / weight.sum()


def counts(num_classes: int) -> torch.Tensor:
    """A few frequent classes scattered over the range, every class seen at least 3 times."""
    rank = torch.arange(num_classes) * 17 % num_classes
    return 3 + 40 // (rank + 1)


def holes(num_classes: int) -> torch.Tensor:
    """The same with every third class unseen and some seen once."""
    seen = counts(num_classes)
    seen[::3] = 0
    seen[1::9] = 1
    return seen


def few(num_classes: int):
    """Counts of a seventh of the classes: too few to spread over all of them."""
    ids = torch.arange(3, num_classes, 7)
    return ids.flip(0), counts(num_classes)[ids].flip(0)


def bigram(num_classes: int) -> Bigram:
    generator = stream(0, "bigram", num_classes)
    previous = torch.randint(6, (num_classes,), generator=generator)
    following = torch.randint(num_classes, (num_classes,), generator=generator)
    times = torch.randint(1, 5, (num_classes,), generator=generator)
    return Bigram(previous, following, times, unigram=Squashed(holes(num_classes)), kappa=30.0)


BATCH = torch.tensor([4, 0, 4, -1, 2, 30])  # repeated, none, and one without any pair

PROPOSALS = {
    "uniform": Uniform,
    "log-uniform": LogUniform,
    "squashed": lambda n: Squashed(holes(n), alpha=0.5),
    "squashed, alpha 0": lambda n: Squashed(holes(n), alpha=0),
    "squashed, alpha 1": lambda n: Squashed(holes(n), alpha=1),
    "squashed, tiny beta": lambda n: Squashed(counts(n), beta=1e-12),
    "squashed, sparse": lambda n: Squashed(few(n), alpha=0.75, num_classes=n),
    "squashed, equal counts": lambda n: Squashed([5] * n),
    "mixture": lambda n: Mixture([LogUniform(n), Squashed(holes(n)), Uniform(n)], [3, 1, 2]),
    "bigram": lambda n: bigram(n).conditioned_on(BATCH),
    "mixture of a bigram": lambda n: Mixture([bigram(n), Uniform(n)], [4, 1]).conditioned_on(BATCH),
    "by rank": lambda n: ByRank(LogUniform(n), torch.arange(n).roll(5).flip(0)),
    "a user's own": Ramp,
}


@pytest.fixture(autouse=True)
def _few_classes_are_drawn_like_many(monkeypatch):
    """Otherwise all small samples of these tests would be drawn by arrival times."""
    monkeypatch.setattr(base, "RACE_BELOW", 0)


@pytest.fixture(params=PROPOSALS.values(), ids=PROPOSALS.keys())
def build(request):
    return request.param


@pytest.fixture
def proposal(build):
    return build(C)


def test_probabilities_of_all_classes_sum_to_one(proposal):
    log_prob = proposal.log_prob(torch.arange(C))
    assert log_prob.dtype == torch.float64
    assert bool(log_prob.isfinite().all())
    assert math.isclose(math.fsum(log_prob.exp().tolist()), 1, rel_tol=1e-12)


def test_log_prob_has_the_shape_of_the_ids(proposal):
    ids = torch.tensor([[30, 0, 7], [7, 7, 29]])
    flat = proposal.log_prob(ids.reshape(-1))
    assert torch.equal(proposal.log_prob(ids), flat.reshape(2, 3))
    assert flat[2] == flat[3] == flat[4]


def test_draws_are_as_frequent_as_log_prob_says(proposal):
    ids = proposal.draw(20_011, generator=stream(0, "draws"))
    assert ids.dtype == torch.int64
    assert ids.shape == (20_011,)
    observed = np.bincount(ids.numpy(), minlength=C)
    assert len(observed) == C  # none beyond the last class
    prob = proposal.log_prob(torch.arange(C)).exp().numpy()
    assert p_value(observed, prob) > 1e-6  # a correct draw fails one seed in a million


@pytest.mark.parametrize("k", [1, SPARSE, DENSE, C - 1])
def test_a_sample_is_k_distinct_ascending_ids_with_expected_counts_of_at_most_one(proposal, k):
    sample = proposal.sample(k, generator=stream(0, "sample", k))
    assert sample.ids.dtype == torch.int64
    assert sample.log_q.dtype == torch.float32
    assert len(sample) == k == sample.log_q.shape[0]
    assert bool((sample.ids[1:] > sample.ids[:-1]).all())
    assert sample.ids[0] >= 0
    assert sample.ids[-1] < C
    assert bool((sample.log_q.isfinite() & (sample.log_q <= 0)).all())


def test_a_more_likely_class_has_the_larger_expected_count_with_arrival_times(proposal):
    sample = proposal.sample(DENSE, generator=stream(1, "sample", DENSE))
    order = proposal.log_prob(sample.ids).argsort(stable=True)
    assert bool((sample.log_q[order].diff() >= 0).all())


@pytest.mark.parametrize("k", [SPARSE, DENSE])
def test_the_same_generator_state_gives_the_same_sample_and_another_state_another(proposal, k):
    generator = stream(3, "a")
    first, following = (proposal.sample(k, generator=generator) for _ in range(2))
    again = proposal.sample(k, generator=stream(3, "a"))
    other = proposal.sample(k, generator=stream(3, "b"))
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.log_q, again.log_q)
    assert not torch.equal(first.ids, other.ids)
    assert not torch.equal(first.ids, following.ids)  # the generator moves on


def test_asking_for_every_class_gives_each_with_certainty_and_for_more_is_refused(proposal):
    sample = proposal.sample(C, generator=stream(0, "all"))
    assert torch.equal(sample.ids, torch.arange(C))
    assert torch.equal(sample.log_q, torch.zeros(C))
    with raises_text("cannot draw 32 distinct classes from 31. Ask for fewer."):
        proposal.sample(C + 1, generator=stream(0, "all"))


def inverse_counts(proposal: Proposal, k: int, samples: int) -> np.ndarray:
    """(samples, C): 1 / expected count where a class was drawn, 0 where it was not."""
    weight = torch.zeros(samples, proposal.num_classes, dtype=torch.float64)
    generator = stream(0, "expected counts", k)
    for row in weight:
        sample = proposal.sample(k, generator=generator)
        row[sample.ids] = (-sample.log_q.double()).exp()
    return weight.numpy()


def errors_by_class(inverse: np.ndarray) -> np.ndarray:
    """How far each class's mean of [drawn] / q lies from 1, in standard errors.

    The variance of [drawn] / q is 1 / q - 1. Taken from q and not from the spread of the
    column, it is also right for a class that is missed less than once in all samples.
    """
    drawn = inverse > 0
    variance = (inverse - drawn).sum(axis=0) / drawn.sum(axis=0)
    rounding = 1e-12  # squared, of a float32 log_q
    return (inverse.mean(axis=0) - 1) / np.sqrt(variance / len(inverse) + rounding)


def error_of_mean(value: float, estimates: np.ndarray) -> float:
    """How far the mean lies from `value`, in standard errors, or in roundings of float32."""
    spread = estimates.std(ddof=1) / len(estimates) ** 0.5
    return float((estimates.mean() - value) / max(spread, 1e-6 * value))


@pytest.mark.parametrize("k", [SPARSE, DENSE])
def test_expected_counts_match_observed_counts(build, k):
    proposal = build(C)
    inverse = inverse_counts(proposal, k, samples=1_500)
    # 31 classes and 2 sums, 2 sizes, 13 proposals: one false alarm in a thousand fresh seeds
    bound = stats.norm.isf(0.5 * 1e-3 / (C + 2) / 2 / len(PROPOSALS))
    often = inverse.astype(bool).sum(axis=0) >= 100  # too few draws are not normally distributed
    assert abs(errors_by_class(inverse[:, often])).max(initial=0) < bound
    # sums over classes are sharper: they show a bias of three percent that no class shows alone
    prob = proposal.log_prob(torch.arange(C)).exp().numpy()
    assert abs(error_of_mean(1, inverse @ prob)) < bound
    if often.all():
        assert abs(error_of_mean(C, inverse.sum(axis=1))) < bound


def test_expected_counts_match_observed_counts_among_a_thousand_classes(build):
    inverse = inverse_counts(build(1009), 251, samples=400)
    # 1009 classes, 13 proposals: one false alarm in a thousand fresh seeds
    bound = stats.norm.isf(0.5 * 1e-3 / 1009 / len(PROPOSALS))
    assert abs(errors_by_class(inverse)).max() < bound


@pytest.mark.parametrize("travel", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_a_copy_draws_the_same(proposal, travel):
    twin = travel(proposal)
    assert twin is not proposal
    ids = torch.arange(C)
    assert torch.equal(twin.log_prob(ids), proposal.log_prob(ids))
    for k in (SPARSE, DENSE):
        ours, theirs = (p.sample(k, generator=stream(5, "copy", k)) for p in (proposal, twin))
        assert torch.equal(ours.ids, theirs.ids)
        assert torch.equal(ours.log_q, theirs.log_q)


def test_repr_is_one_short_line(proposal):
    assert len(repr(proposal)) < 200
    assert "\n" not in repr(proposal)
    assert "tensor" not in repr(proposal)


def test_a_proposal_without_context_is_itself_for_every_batch(proposal):
    if not isinstance(proposal, Mixture):
        assert proposal.conditioned_on(BATCH) is proposal
    ids = torch.arange(C)
    assert torch.equal(proposal.conditioned_on(BATCH).log_prob(ids), proposal.log_prob(ids))
