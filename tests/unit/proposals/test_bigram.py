import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import proposals as slow

from tapas import DataError, LogUniform, Squashed, Uniform, UsageError
from tapas.proposals import Bigram
from tapas.rng import stream

C = 31
PAIRS = [(4, 7, 3), (4, 30, 1), (0, 7, 2), (11, 0, 5), (4, 7, 2), (30, 30, 0.5)]


def build(pairs, *, unigram=None, kappa=1.0):
    previous, following, counts = zip(*pairs, strict=True) if pairs else ((), (), ())
    return Bigram(
        torch.tensor(previous, dtype=torch.int64),
        torch.tensor(following, dtype=torch.int64),
        torch.tensor(counts, dtype=torch.float64),
        unigram=unigram or LogUniform(C),
        kappa=kappa,
    )


def prob_of(proposal):
    return proposal.log_prob(torch.arange(C)).exp().numpy()


classes = st.integers(0, C - 1)
pair = st.tuples(classes, classes, st.floats(1e-6, 1e6))


@given(
    st.lists(pair, max_size=40),
    st.lists(st.integers(-1, C - 1), min_size=1, max_size=9),
    st.floats(0.01, 100),
)
def test_a_batch_is_proposed_for_by_the_mean_of_its_rows(pairs, contexts, kappa):
    got = prob_of(build(pairs, kappa=kappa).given(torch.tensor(contexts)))
    want = slow.bigram(pairs, contexts, slow.log_uniform(C), kappa)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-14)


def test_a_repeated_pair_is_the_sum_of_its_counts():
    once = build([(4, 7, 5), (4, 30, 1), (0, 7, 2), (11, 0, 5), (30, 30, 0.5)])
    context = torch.tensor([4, 30, 2])
    np.testing.assert_allclose(
        prob_of(build(PAIRS).given(context)), prob_of(once.given(context)), rtol=1e-12
    )


def test_a_rarely_seen_context_is_mostly_the_unigram():
    got = prob_of(build([(4, 7, 1)], unigram=Uniform(C), kappa=9.0).given(torch.tensor([4])))
    assert got[7] == pytest.approx(0.1 + 0.9 / C, rel=1e-12)
    assert got[8] == pytest.approx(0.9 / C, rel=1e-12)


def test_a_context_with_tiny_counts_is_not_lost_beside_a_giant():
    """Differences of a running sum would leave 0 / 0 for what was counted after 1e17."""
    bigram = build([(1, 3, 1e17), (2, 4, 1.0)], unigram=Uniform(C))
    got = prob_of(bigram.given(torch.tensor([2])))
    np.testing.assert_allclose(
        got, slow.bigram([(2, 4, 1.0)], [2], np.full(C, 1 / C), 1.0), rtol=1e-12
    )


def test_no_context_and_an_unknown_one_fall_back_to_the_unigram():
    for contexts in ([-1], [-1, 5, -7], [29]):
        got = build(PAIRS).given(torch.tensor(contexts))
        np.testing.assert_allclose(prob_of(got), slow.log_uniform(C), rtol=1e-12)


def test_without_any_pair_it_is_the_unigram():
    proposal = build([]).given(torch.tensor([3, -1]))
    np.testing.assert_allclose(prob_of(proposal), slow.log_uniform(C), rtol=1e-12)
    ids = proposal.draw(50, generator=stream(0))
    assert ids.shape == (50,)
    assert int(ids.min()) >= 0
    assert int(ids.max()) < C


def test_the_shape_of_the_context_does_not_matter():
    bigram, flat = build(PAIRS), torch.tensor([4, 0, -1, 11, 4, 30])
    want = prob_of(bigram.given(flat))
    np.testing.assert_array_equal(prob_of(bigram.given(flat.reshape(2, 3).int())), want)


def test_draws_are_as_frequent_as_the_mean_of_the_rows():
    contexts = [4, 4, 0, 11, -1, 30, 29]
    proposal = build(PAIRS, kappa=0.5).given(torch.tensor(contexts))
    ids = proposal.draw(20_011, generator=stream(0, "bigram"))
    observed = np.bincount(ids.numpy(), minlength=C)
    want = slow.bigram(PAIRS, contexts, slow.log_uniform(C), 0.5)
    assert slow.chance_of(observed, want) > 1e-6  # fails one seed in a million


def test_pairs_of_three_billion_classes_keep_their_exact_ids():
    size = 3_000_000_000
    previous = torch.tensor([2**31 + 1, 2**31 + 2])
    following = torch.tensor([size - 1, 2**24 + 1])
    unigram = Squashed(([5], [10]), num_classes=size)
    bigram = Bigram(previous, following, torch.tensor([3, 4]), unigram=unigram)
    proposal = bigram.given(torch.tensor([2**31 + 2]))
    log_prob = proposal.log_prob(torch.tensor([2**24, 2**24 + 1, 2**24 + 2, size - 1]))
    assert log_prob[1].exp().item() == pytest.approx(0.8, rel=1e-8)
    assert bool((log_prob[[0, 2, 3]].exp() < 1e-9).all())
    drawn = proposal.draw(1_009, generator=stream(0, "huge"))
    hits = int((drawn == 2**24 + 1).sum())
    assert abs(hits - 0.8 * 1_009) < 5 * (1_009 * 0.16) ** 0.5  # fails one seed in 1.7 million


def test_repr_counts_pairs_and_classes():
    assert repr(build(PAIRS)) == "Bigram(6 pairs, kappa=1, LogUniform(31))"
    assert repr(build(PAIRS).given(torch.tensor([4, 0]))) == (
        "Bigram given a batch (2 classes seen after it, LogUniform(31))"
    )


NEEDS_CONTEXT = (
    "a Bigram proposal needs the previous class of every row: pass context=previous to the head, "
    "or call bigram.given(previous)."
)


@pytest.mark.parametrize(
    ("error", "call", "words"),
    [
        (UsageError, lambda: build(PAIRS).given(None), NEEDS_CONTEXT),
        (UsageError, lambda: build(PAIRS).sample(3, generator=stream(0)), NEEDS_CONTEXT),
        (UsageError, lambda: build(PAIRS).sample(9, generator=stream(0)), NEEDS_CONTEXT),
        (UsageError, lambda: build(PAIRS).log_prob(torch.tensor([0])), NEEDS_CONTEXT),
        (
            UsageError,
            lambda: build(PAIRS).given(torch.tensor([], dtype=torch.int64)),
            "context is empty; expected the previous class of every row.",
        ),
        (
            UsageError,
            lambda: build(PAIRS).given(torch.tensor([1.0])),
            "context has dtype torch.float32; expected int64 class ids. Convert before the ids "
            "ever pass through a float.",
        ),
        (
            UsageError,
            lambda: build(PAIRS, kappa=0),
            "kappa must be a finite number above 0, got 0.",
        ),
        (
            UsageError,
            lambda: build(PAIRS, kappa=float("nan")),
            "kappa must be a finite number above 0, got nan.",
        ),
        (
            UsageError,
            lambda: build([(31, 0, 1)]),
            "previous holds class 31; expected ids from 0 to 30 (num_classes=31).",
        ),
        (
            UsageError,
            lambda: build([(0, -2, 1)]),
            "following holds class -2; expected ids from 0 to 30 (num_classes=31).",
        ),
        (
            UsageError,
            lambda: Bigram(
                torch.tensor([1, 2]), torch.tensor([1]), torch.tensor([1]), unigram=Uniform(C)
            ),
            "previous, following and counts must share one shape (N,), got (2,), (1,), (1,).",
        ),
        (
            DataError,
            lambda: build([(1, 2, 0)]),
            "bigram counts must be finite and above 0; leave the other pairs out.",
        ),
        (
            DataError,
            lambda: build([(1, 2, float("inf"))]),
            "bigram counts must be finite and above 0; leave the other pairs out.",
        ),
    ],
)
def test_bad_pairs_and_contexts_are_refused_in_these_words(error, call, words):
    with pytest.raises(error, match=re.escape(words)):
        call()


def test_the_unigram_keeps_its_share_where_counts_dwarf_kappa():
    bigram = Bigram(
        torch.tensor([0]),
        torch.tensor([1]),
        torch.tensor([1e20], dtype=torch.float64),
        unigram=Uniform(5),
        kappa=1e-3,
    )
    log_prob = bigram.given(torch.tensor([0])).log_prob(torch.tensor([3]))
    assert math.isclose(log_prob.exp().item(), 1e-23 / 5, rel_tol=1e-9)
