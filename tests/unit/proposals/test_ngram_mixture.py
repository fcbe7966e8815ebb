"""The mixture that adapts to observed estimates, against plain loops."""

import copy
import io

import numpy as np
import pytest
import torch
from error_text import raises_text
from oracle.proposals import p_value, squashed
from oracle.sampling_heads import Ngrams

from tapas.proposals.ngram_mixture import NgramMixture
from tapas.rng import stream

C, RATE = 13, 0.1
COUNTS = torch.tensor([5, 0, 3, 1, 40, 2, 2, 9, 0, 1, 1, 6, 3])
PAIRS = [(4, 7, 3.0), (4, 0, 1.0), (0, 4, 2.0), (4, 7, 2.0), (11, 2, 9.0), (11, 11, 1.0)]
EVERY = torch.arange(C)


def make(pairs=PAIRS, **options):
    given = None
    if pairs is not None:
        given = tuple(torch.tensor(column) for column in zip(*pairs, strict=True))
    return NgramMixture(C, pairs=given, **({"counts": COUNTS, "rate": RATE} | options))


def oracle(pairs=PAIRS):
    return Ngrams(squashed(COUNTS.tolist(), 1.0), pairs, RATE)


def prob(mixture, contexts):
    given = None if contexts is None else torch.tensor(contexts)
    return mixture.conditioned_on(given).log_prob(EVERY).exp()


def estimates(step, size=6, kept=5):
    """Estimates (6, 5) of a few classes, and contexts with and without rows."""
    ids = torch.randperm(C, generator=stream(0, "ids", step))[:kept].sort().values
    share = torch.randn(size, kept, generator=stream(0, "share", step)).mul(2).softmax(dim=1)
    context = torch.tensor([4, 0, 4, 11, -1, 5])[:size]
    return ids, share, context


def agree(mixture, slow, rtol=1e-5, atol=1e-8):
    for contexts in ([4], [0, 11, 4, 4], [-1, 4, 6], [5]):
        want = torch.tensor([slow.prob(contexts, y) for y in range(C)]).double()
        torch.testing.assert_close(prob(mixture, contexts), want, rtol=rtol, atol=atol)
    want = torch.tensor([slow.base(y) for y in range(C)]).double()
    torch.testing.assert_close(prob(mixture, None), want, rtol=rtol, atol=atol)


def test_it_starts_with_equal_shares_of_uniform_and_unigram_and_of_these_and_the_bigram():
    agree(make(), oracle())
    torch.testing.assert_close(prob(make(None), [4]), prob(make(), None))
    alike = prob(make(None, counts=None), None)
    torch.testing.assert_close(alike, torch.full((C,), 1 / C).double())


def test_estimates_move_it_as_in_the_loops():
    mixture, slow = make(), oracle()
    for refresh in range(4):
        for step in range(3):
            ids, share, context = estimates(3 * refresh + step)
            mixture.observe(ids, share, context)
            slow.observe(ids, share, context.tolist())
        mixture.refresh()
        slow.refresh()
        agree(mixture, slow)
        assert float(prob(mixture, [4, -1]).sum()) == pytest.approx(1)
    assert mixture.shares.tolist() != pytest.approx([0.5, 0.5], abs=0.02)


def test_without_pairs_or_context_the_unigram_moves_alone():
    mixture, slow = make(None), oracle([])
    paired = make()
    for step in range(3):
        ids, share, _ = estimates(step)
        mixture.observe(ids, share, None)
        paired.observe(ids, share, None)
        slow.observe(ids, share, [-1] * len(share))
    before = paired.pair_mass.clone()
    for one in (mixture, paired, slow):
        one.refresh()
    want = torch.tensor([slow.base(y) for y in range(C)]).double()
    torch.testing.assert_close(prob(mixture, [4]), want, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(prob(paired, None), want, rtol=1e-5, atol=1e-8)
    assert torch.equal(paired.pair_mass, before)
    assert float(paired.shares[1]) == 0.5


def test_it_does_not_change_until_it_is_refreshed():
    mixture = make()
    before = prob(mixture, [4, 0])
    mixture.observe(*estimates(0))
    assert torch.equal(prob(mixture, [4, 0]), before)
    mixture.refresh()
    assert not torch.equal(prob(mixture, [4, 0]), before)
    after = prob(mixture, [4, 0])
    mixture.refresh()  # nothing was observed
    assert torch.equal(prob(mixture, [4, 0]), after)


@pytest.mark.slow
def test_certain_estimates_move_it_as_in_the_loops_and_no_share_becomes_0():
    """First of a class that the bigram knows, then of one that it does not."""
    mixture, slow = make(), oracle()
    for target, times in ((7, 60), (3, 200)):
        certain = torch.zeros(1, C)
        certain[0, target] = 1.0
        for _ in range(times):
            for one, context in ((mixture, torch.tensor([4])), (slow, [4])):
                one.observe(EVERY, certain, context)
                one.refresh()
        agree(mixture, slow, rtol=1e-3, atol=1e-5)  # after hundreds of roundings to float32
        assert prob(mixture, [4])[target] > 0.9
        assert bool((prob(mixture, [4]) > 0).all())
    assert mixture.shares.tolist() == pytest.approx([0.05, 0.001])


def test_a_row_without_mass_stays_normalised():
    mixture, elsewhere = make(rate=1.0), torch.zeros(1, C)
    elsewhere[0, 3] = 1.0
    mixture.observe(EVERY, elsewhere, torch.tensor([4]))
    mixture.refresh()
    assert not mixture.pair_mass[1:3].any()  # those after class 4
    assert float(prob(mixture, [4]).sum()) == pytest.approx(1)


def test_draws_follow_the_moved_mixture():
    mixture = make()
    for step in range(9):
        mixture.observe(*estimates(step))
    mixture.refresh()
    proposal = mixture.conditioned_on(torch.tensor([4, 0, -1]))
    drawn = proposal.draw(40_000, generator=stream(0, "draws"))
    # a correct one fails 1 seed in 1,000
    counts = np.bincount(drawn.numpy(), minlength=C)
    assert p_value(counts, prob(mixture, [4, 0, -1]).numpy()) > 1e-3


def test_estimates_of_nothing_leave_the_unigram_as_it_is():
    mixture = make()
    ids, share, context = estimates(0)
    mixture.observe(ids, torch.zeros_like(share), context)
    before = mixture.unigram.clone()
    mixture.refresh()
    assert torch.equal(mixture.unigram, before)
    assert bool(prob(mixture, [4]).isfinite().all())


def test_a_saved_mixture_continues_where_it_was():
    uninterrupted, first, second = make(), make(), make()
    second.conditioned_on(None)  # the cached Q must be dropped when a state is loaded
    for step in range(6):
        for one in (uninterrupted, first) if step < 4 else (uninterrupted,):
            one.observe(*estimates(step))
            if step % 3 == 2:
                one.refresh()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(prob(second, [4, 0]), prob(first, [4, 0]))
    for one in (second, copy.deepcopy(first)):
        for step in range(4, 6):
            one.observe(*estimates(step))
        one.refresh()
        assert torch.equal(prob(one, [4, 0]), prob(uninterrupted, [4, 0]))
        assert one.checksum() == uninterrupted.checksum()
    assert make().checksum() != uninterrupted.checksum()


def test_empty_pairs_give_no_bigram():
    none = torch.zeros(0, dtype=torch.int64)
    mixture = NgramMixture(C, pairs=(none, none, none.float()), counts=COUNTS)
    torch.testing.assert_close(prob(mixture, [4]), prob(make(None), None))


def test_bad_pairs_counts_and_states_are_refused():
    with raises_text(
        "pairs must be a tuple (previous, following, counts), got list of length 2. Pass"
    ):
        NgramMixture(C, pairs=[EVERY, EVERY])
    with raises_text("following holds class 13; expected ids from 0 to 12"):
        make([(0, 13, 1.0)])
    with raises_text("num_classes is 13 but counts has 2 entries"):
        make(counts=torch.ones(2))
    state = make([(2, 7, 3.0), *PAIRS[1:]]).state_dict()
    with raises_text(
        "the saved state has other pairs than this mixture. Build it with the pairs that the"
    ):
        make([(3, 7, 3.0), *PAIRS[1:]]).load_state_dict(state)
