"""Fitting the numbers of a mixture: they are found again, stay near their start, are finite."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from oracle import mixture as oracle
from unit.mixture.cases import C, cases, mixture_of

from tapas.mixture import SCALES, Past, Targets, Watched, fit_parts, fit_shares
from tapas.mixture.fit import PRIOR
from tapas.rng import stream

BOTH = ("copy", "follow")
ONE = torch.tensor([1.0, 0, 0, 0, 0], dtype=torch.float64)  # of the features, the first


def numbers_of(mixture):
    return {name: value.clone() for name, value in mixture.state_dict().items()}


def known(log_probs, *, offers=None):
    """One target for each of P histories, with `log_probs` (P, parts) by the counting parts."""
    size, parts = log_probs.shape
    offers = torch.ones(size, parts, dtype=torch.bool) if offers is None else offers
    target = torch.zeros(size, 1, dtype=torch.int64)
    return Targets(ONE.expand(size, 5), offers, target, log_probs[:, None])


def partitions(logits):
    """(P, len(SCALES)) log partitions of `logits` (P, C)."""
    return torch.stack([(scale * logits).logsumexp(dim=1) for scale in SCALES], dim=1)


@given(case=cases())
def test_targets_have_the_probabilities_that_the_parts_give_them(case):
    """Padding has none."""
    every = torch.arange(-1, C).expand(len(case.items), C + 1)
    watched = Watched.of(case.mixture, case.past, every, case.exclude)
    found = watched.log_probs(case.mixture).exp()
    assert not found[:, 0].any()
    copy, follow = case.mixture.copy, case.mixture.follow
    for b, (items, ages) in enumerate(zip(case.items, case.ages, strict=True)):
        want, excluded = [], case.excluded(b)
        if copy is not None:
            power = math.exp(float(copy.log_power))
            numbers = {"decay": float(copy.decay), "power": power, "excluded": excluded}
            want.append(oracle.copy(items, ages, C, **numbers))
        if follow is not None:
            numbers = {"decay": float(follow.decay), "trust": float(follow.trust)}
            want.append(oracle.follow(items, ages, case.count, **numbers, excluded=excluded)[0])
        np.testing.assert_allclose(found[b, 1:], np.stack(want, axis=1), rtol=1e-5)


def test_shares_and_scale_are_found_again():
    """4,000 targets drawn from a known mixture of three distributions over 40 classes.

    The squared distance in standard errors is chi-square with 3 degrees of freedom: a correct fit
    fails 1 seed in 20,000.
    """
    size, num_classes = 4_000, 40
    draw = stream(0, "fit")
    logits = 2 * torch.randn(size, num_classes, generator=draw).double()
    parts = [
        torch.randn(size, num_classes, generator=draw).double().mul(2).softmax(dim=1) for _ in BOTH
    ]
    gate, scale = torch.tensor([0.4, -0.8]).double(), 0.6
    share = torch.cat([torch.zeros(1), gate]).softmax(dim=0)
    softmax = (scale * logits).softmax(dim=1)
    mixed = sum(g * p for g, p in zip(share, [softmax, *parts], strict=True))
    target = mixed.multinomial(1, generator=draw)
    mixture = mixture_of(BOTH, np.zeros((num_classes, num_classes)))
    log_probs = torch.cat([p.gather(1, target) for p in parts], dim=1).log()
    fit_shares(mixture, known(log_probs), logits.gather(1, target), partitions(logits))

    prob = mixed.gather(1, target)
    by_part = torch.cat([p.gather(1, target) for p in (softmax, *parts)], dim=1) * share / prob
    mean_logit = (softmax * logits).sum(dim=1, keepdim=True)
    by_scale = by_part[:, :1] * (logits.gather(1, target) - mean_logit)
    slope = torch.cat([by_part[:, 1:] - share[1:], by_scale], dim=1)  # of log p at the truth
    information = slope.t() @ slope
    found = torch.cat([mixture.gate[:, 0], mixture.scale[None]]).double()
    error = found - torch.cat([gate, torch.tensor([scale])])
    assert float(error @ information @ error) < 22.5
    assert not mixture.gate[:, 1:].any()  # of features that are 0


def drawn_targets(mixture, past, popularity, draw):
    """A target (P, 1) for each history, from the counting parts and `popularity`."""
    every = torch.arange(C).expand(len(past.items), C)
    mixed = mixture(past)
    prob = mixed.log_prob(popularity.expand(len(every), C), every).exp()
    return prob.multinomial(1, generator=draw)


def test_the_numbers_of_the_parts_are_found_again():
    """3,000 targets drawn from a mixture whose numbers are known.

    Standard errors are those of the curvature at the truth: the squared distance is chi-square
    with 14 degrees of freedom, and a correct fit fails 1 seed in 35,000.
    """
    random, draw = np.random.default_rng(0), stream(0, "targets")
    count = random.integers(1, 30, (C, C)) * (random.random((C, C)) < 0.3) / 2
    truth = {
        "copy_decay": 1.3, "copy_log_power": -0.3, "follow_decay": 1.0, "follow_trust": 0.1,
        "gate": torch.tensor([[0.5, 0.0, 0, 0, 0.5], [0.2, 0.2, 0.0, 0, 0]]),
    }  # fmt: skip
    mixture = mixture_of(BOTH, count, **truth)
    size = 3_000
    items = torch.from_numpy(random.integers(0, C, (size, 9)))
    past = Past.of(items, torch.from_numpy(random.integers(1, 10, size)))
    popularity = torch.randn(C, generator=draw).double().log_softmax(dim=0)
    target = drawn_targets(mixture, past, popularity, draw)

    watched = Watched.of(mixture, past, target)
    places = [(mixture, "gate"), (mixture.copy, "decay"), (mixture.copy, "log_power"),
              (mixture.follow, "decay"), (mixture.follow, "trust")]  # fmt: skip
    true = torch.cat([getattr(part, name).double().view(-1) for part, name in places])

    def cost(numbers):
        for (part, name), value in zip(places, numbers.split([10, 1, 1, 1, 1]), strict=True):
            setattr(part, name, value.view_as(getattr(part, name)))
        shares = mixture.log_shares(watched.evidence.features, watched.evidence.offers)
        each = torch.cat([popularity[target][:, :, None], watched.log_probs(mixture)], dim=2)
        return -(each + shares[:, None]).logsumexp(dim=2).sum()

    information = torch.autograd.functional.hessian(cost, true)
    mixture = mixture_of(BOTH, count)
    fit_parts(mixture, watched, popularity)
    found = torch.cat(
        [mixture.gate.view(-1)]
        + [x.view(1) for x in (mixture.copy.decay, mixture.copy.log_power)]
        + [x.view(1) for x in (mixture.follow.decay, mixture.follow.trust)]
    )
    error = found.double() - true
    assert float(error @ information @ error) < 46
    assert float(mixture.scale) == 1


def test_the_loss_is_that_of_the_fitted_mixture():
    """Log partitions between SCALES are interpolated, to a few thousandths of a nat here."""
    draw = stream(0, "loss")
    logits = 2 * torch.randn(300, 500, generator=draw).double()
    target = (0.8 * logits).softmax(dim=1).multinomial(1, generator=draw)
    mixture = mixture_of(["copy"], np.zeros((C, C)))
    copied = torch.where(torch.rand(300, 1, generator=draw) < 0.2, 0.5, 1e-9).double()
    given = known(copied.log())
    loss = fit_shares(mixture, given, logits.gather(1, target), partitions(logits))
    scale = float(mixture.scale)
    assert 0.6 < scale < 1
    assert scale not in SCALES
    softmax = (scale * logits).log_softmax(dim=1).gather(1, target)
    share = mixture.log_shares(given.features, given.offers)
    exact = (torch.cat([softmax, copied.log()], dim=1) + share).logsumexp(dim=1)
    assert loss == pytest.approx(-float(exact.mean()), abs=5e-3)


def test_log_probabilities_have_no_scale_to_fit():
    mixture = mixture_of(["copy"], np.zeros((C, C)))
    fit_shares(mixture, known(torch.full((9, 1), -1.0)), torch.full((9, 1), -3.0), None)
    assert float(mixture.scale) == 1
    assert float(mixture.gate[0, 0]) > -1


@pytest.mark.parametrize("copies", [1, 30])
def test_few_targets_leave_numbers_near_their_start(copies):
    """The slope of one target is at most 1, that of the prior 2 PRIOR / targets times the move.

    Only copying explains the targets here.
    """
    mixture = mixture_of(["copy"], np.zeros((C, C)))
    given = known(torch.full((copies, 1), -0.1))
    fit_shares(mixture, given, torch.full((copies, 1), -50.0), None)
    move = float(mixture.gate[0, 0]) + 1
    assert 0 < move <= copies / (2 * PRIOR)
    assert (move < 0.2) == (copies == 1)


def test_histories_weigh_the_same_however_many_targets_they_have():
    target = torch.tensor([[3, 4, -1], [5, -1, -1], [-1, -1, -1]])
    given = Targets(ONE.expand(3, 5), torch.ones(3, 1).bool(), target, torch.zeros(3, 3, 1))
    assert given.weight().tolist() == [[0.25, 0.25, 0], [0.5, 0, 0], [0, 0, 0]]
    twice = Targets.join([given, given])
    assert torch.equal(twice.target, target.repeat(2, 1))
    assert float(twice.weight().sum()) == pytest.approx(1)


IMPOSSIBLE = {
    "NaN": (math.nan, -1.0),
    "inf": (math.inf, -1.0),
    "nothing explains the targets": (-math.inf, -math.inf),
    "the softmax never does": (-math.inf, -1.0),
    "copying never does": (-2.0, -math.inf),
    "far away": (-1e30, -1e30),
}


@pytest.mark.parametrize("has_scale", [True, False], ids=["logits", "log-probabilities"])
@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_numbers_stay_finite(case, has_scale):
    """Also for a model that has diverged."""
    softmax, copied = IMPOSSIBLE[case]
    mixture = mixture_of(["copy"], np.zeros((C, C)))
    logit = torch.full((7, 1), softmax)
    partition = logit.abs().expand(7, len(SCALES)) if has_scale else None
    loss = fit_shares(mixture, known(torch.full((7, 1), copied)), logit, partition)
    assert all(bool(value.isfinite().all()) for value in numbers_of(mixture).values())
    assert SCALES[0] <= float(mixture.scale) <= SCALES[-1]
    if case == "nothing explains the targets" and not has_scale:
        assert loss == pytest.approx(100, rel=1e-3)


def test_without_targets_all_numbers_are_those_of_the_start():
    mixture = mixture_of(BOTH, np.ones((C, C)), copy_decay=3.0)
    start = numbers_of(mixture_of(BOTH, np.ones((C, C))))
    past = Past.of(torch.tensor([[1, 2]]), torch.tensor([2]))
    watched = Watched.of(mixture, past, torch.tensor([[-1]]))
    fit_parts(mixture, watched, torch.zeros(C))
    assert all(torch.equal(value, start[name]) for name, value in numbers_of(mixture).items())


def test_a_fit_does_not_depend_on_earlier_numbers():
    """Otherwise a resumed run would not end as one that never stopped."""
    random = np.random.default_rng(1)
    count = random.integers(0, 3, (C, C)) / 2
    items, target = (torch.from_numpy(random.integers(0, C, (50, n))) for n in (4, 2))
    past, popularity = Past.of(items, torch.full((50,), 4)), torch.full((C,), -math.log(C))
    logits = torch.from_numpy(random.normal(size=(50, C)))
    found = []
    for start in ({}, {"copy_decay": 3.0, "follow_trust": -2.0, "scale": 0.3}):
        mixture = mixture_of(BOTH, count, **start)
        watched = Watched.of(mixture, past, target)
        fit_parts(mixture, watched, popularity)
        given = watched.targets(mixture)
        for _ in range(len(found) + 1):  # once, and once more
            fit_shares(mixture, given, logits.gather(1, target), partitions(logits))
        found.append(numbers_of(mixture))
    one, other = found
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    start = numbers_of(mixture_of(BOTH, count))
    assert all(not torch.equal(value, start[name]) for name, value in one.items())
