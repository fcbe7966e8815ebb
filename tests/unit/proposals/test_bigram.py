import numpy as np
import pytest
import torch
from error_text import raises_text
from hypothesis import example, given
from hypothesis import strategies as st
from oracle import proposals as slow

from tapas import DataError, LogUniform, Squashed, Uniform
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


pair = st.tuples(st.integers(0, 5), st.integers(0, C - 1), st.floats(1e-6, 1e6))
context = st.integers(-1, 7) | st.integers(-1, C - 1)


@given(
    st.lists(pair, max_size=40) | st.lists(st.sampled_from(PAIRS), max_size=9),
    st.lists(context, min_size=1, max_size=9),
    st.floats(0.01, 100),
)
@example([(1, 3, 1e17), (2, 4, 1.0)], [2], 1.0)  # a running sum would leave 0 / 0 after 1e17
def test_the_proposal_of_a_batch_is_the_mean_of_its_rows(pairs, contexts, kappa):
    """Repeated pairs are summed; no context, or an unknown one, is the unigram."""
    given = build(pairs, kappa=kappa).conditioned_on(torch.tensor(contexts))
    want = slow.bigram(pairs, contexts, slow.log_uniform(C), kappa)
    np.testing.assert_allclose(prob_of(given), want, rtol=1e-9, atol=1e-14)


def test_the_shape_of_the_context_does_not_matter():
    bigram, flat = build(PAIRS), torch.tensor([4, 0, -1, 11, 4, 30])
    want = prob_of(bigram.conditioned_on(flat))
    np.testing.assert_array_equal(prob_of(bigram.conditioned_on(flat.reshape(2, 3).int())), want)


def test_without_pairs_everything_is_drawn_from_the_unigram():
    ids = build([]).conditioned_on(torch.tensor([3, -1])).draw(50, generator=stream(0))
    assert ids.shape == (50,)
    assert 0 <= int(ids.min()) <= int(ids.max()) < C


def test_the_unigram_keeps_its_share_if_counts_are_much_larger_than_kappa():
    bigram = build([(0, 1, 1e20)], unigram=Uniform(C), kappa=1e-3)
    log_prob = bigram.conditioned_on(torch.tensor([0])).log_prob(torch.tensor([3]))
    assert log_prob.exp().item() == pytest.approx(1e-23 / C, rel=1e-9)


def test_pairs_of_three_billion_classes_keep_their_exact_ids():
    size = 3_000_000_000
    previous = torch.tensor([2**31 + 1, 2**31 + 2])
    following = torch.tensor([size - 1, 2**24 + 1])
    unigram = Squashed(([5], [10]), num_classes=size)
    bigram = Bigram(previous, following, torch.tensor([3, 4]), unigram=unigram)
    proposal = bigram.conditioned_on(torch.tensor([2**31 + 2]))
    log_prob = proposal.log_prob(torch.tensor([2**24, 2**24 + 1, 2**24 + 2, size - 1]))
    assert log_prob[1].exp().item() == pytest.approx(0.8, rel=1e-8)
    assert bool((log_prob[[0, 2, 3]].exp() < 1e-9).all())
    drawn = proposal.draw(1_009, generator=stream(0, "huge"))
    hits = int((drawn == 2**24 + 1).sum())
    assert abs(hits - 0.8 * 1_009) < 5 * (1_009 * 0.16) ** 0.5  # fails one seed in 1.7 million


def test_bad_pairs_and_contexts_are_refused():
    bigram = build(PAIRS)
    for needs_context in (
        lambda: bigram.conditioned_on(None),
        lambda: bigram.sample(3, generator=stream(0)),
        lambda: bigram.sample(9, generator=stream(0)),
        lambda: bigram.log_prob(torch.tensor([0])),
    ):
        with raises_text(
            "a Bigram proposal needs the previous class of every example: pass "
            "context=previous to the head, or call bigram.conditioned_on(previous)."
        ):
            needs_context()
    with raises_text("context is empty; expected the previous class of every example."):
        bigram.conditioned_on(torch.tensor([], dtype=torch.int64))
    with raises_text("context has dtype torch.float32; expected int64 class ids"):
        bigram.conditioned_on(torch.tensor([1.0]))
    for kappa in (0, float("nan")):
        with raises_text(f"kappa must be a finite number above 0, got {kappa}."):
            build(PAIRS, kappa=kappa)
    with raises_text("previous holds class 31; expected ids from 0 to 30 (num_classes=31)."):
        build([(31, 0, 1)])
    with raises_text("following holds class -2; expected ids from 0 to 30 (num_classes=31)."):
        build([(0, -2, 1)])
    with raises_text(
        "previous, following and counts must share one shape (N,), got (2,), (1,), (1,)."
    ):
        Bigram(*map(torch.tensor, ([1, 2], [1], [1])), unigram=Uniform(C))
    for count in (0, float("inf")):
        with raises_text(
            "bigram counts must be finite and above 0; leave the other pairs out.", DataError
        ):
            build([(1, 2, count)])
