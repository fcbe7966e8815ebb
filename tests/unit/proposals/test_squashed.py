import math

import numpy as np
import pytest
import torch
from error_text import raises_text
from hypothesis import assume, example, given
from hypothesis import strategies as st
from oracle import proposals as slow

from tapas import DataError, Squashed
from tapas.rng import stream

HUGE = 3_000_000_000
COUNTS = [0, 7, 1, 0, 120, 3, 1, 1, 0, 2, 55]


def prob_of(proposal):
    return proposal.log_prob(torch.arange(proposal.num_classes)).exp().numpy()


counts = st.lists(st.integers(0, 10**6), min_size=1, max_size=67)
alphas = st.sampled_from([0, 0.1, 1 / 3, 0.5, 0.75, 0.9, 1])
betas = st.none() | st.floats(1e-12, 10)


@given(counts, alphas, betas)
@example([2, 2], 1, None)  # equal counts are uniform
@example([7] * 199, 1, None)
@example([0, 7, 1, 0, 120], 0.5, 2.0)  # so is a floor above every frequency
@example([3, 0, 1], 0, 0.1)  # and alpha 0, whatever the floor
def test_any_counts_dense_or_sparse_are_squashed_as_by_the_slow_version(counts, alpha, beta):
    assume(sum(counts) > 0)
    got = prob_of(Squashed(counts, alpha=alpha, beta=beta))
    np.testing.assert_allclose(got, slow.squashed(counts, alpha, beta), rtol=1e-11)
    ids = [i for i, c in enumerate(counts) if c > 0][::-1]  # in any order
    seen = [counts[i] for i in ids]
    extra = 5 * len(counts)  # enough unseen classes that log_prob searches instead of spreading
    sparse = Squashed((ids, seen), alpha=alpha, beta=beta, num_classes=len(counts) + extra)
    dense = Squashed(counts + [0] * extra, alpha=alpha, beta=beta)
    want = slow.squashed(counts + [0] * extra, alpha, beta)
    np.testing.assert_allclose(prob_of(sparse), want, rtol=1e-11)
    for k in (1, len(counts)):
        a, b = (p.sample(k, generator=stream(0, "both", k)) for p in (sparse, dense))
        assert torch.equal(a.ids, b.ids)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, lambda c: torch.tensor(c).half()])
def test_counts_may_come_in_any_kind_of_array(kind):
    got = prob_of(Squashed(kind(COUNTS), alpha=1.0))
    np.testing.assert_allclose(got, slow.squashed(COUNTS, 1), rtol=1e-12)


@given(counts, alphas)
def test_only_classes_seen_more_than_once_are_stored_by_default(counts, alpha):
    """A power of 1 / total that rounds up by one ulp must not store every class seen once."""
    counts = counts + [1] * 67
    proposal = Squashed(counts, alpha=alpha)
    want = [i for i, c in enumerate(counts) if c > 1] if alpha > 0 else []
    assert proposal.head_ids.tolist() == want


def few_of_many():
    """A thousand classes above the floor and a thousand at it, of three billion."""
    ids = torch.arange(2_000) * 1_499_999 + 1_003
    return Squashed((ids, 1 + ids % 2 * 500), alpha=1.0, num_classes=HUGE), ids


def storages(thing) -> dict:
    """Bytes of the full storage behind every tensor reachable from `thing`, by address."""
    if isinstance(thing, torch.Tensor):
        storage = thing.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()}
    parts = thing if isinstance(thing, tuple) else getattr(thing, "__dict__", {}).values()
    return {at: size for part in parts for at, size in storages(part).items()}


def test_memory_is_for_the_classes_above_the_floor_only():
    proposal, _ = few_of_many()
    assert len(proposal.head_ids) == 1_000
    # id, log(1 - q), threshold and partner: 24 bytes, and a directory of ids
    assert 0 < sum(storages(proposal).values()) - 24 * 1_000 <= 2 * 4 * 1_001


def test_draws_cover_three_billion_classes_as_log_prob_says():
    """32 random bits modulo 3e9 would favour the lower 1.3e9 ids, a float32 multiples of 256."""
    proposal, _ = few_of_many()
    drawn = proposal.draw(100_003, generator=stream(0, "huge"))
    tail = drawn[~torch.isin(drawn, proposal.head_ids)]
    observed = np.bincount((tail // 100_000_000).numpy(), minlength=30)
    assert len(observed) == 30
    assert slow.p_value(observed, np.full(30, 1 / 30)) > 1e-6  # fails one seed in a million
    low_bits = np.bincount((tail % 256).numpy(), minlength=256)
    assert slow.p_value(low_bits, np.full(256, 1 / 256)) > 1e-6  # another one
    assert int(tail.max()) > 2**31
    floor = proposal.log_prob(torch.tensor([0])).exp().item()
    head = proposal.log_prob(proposal.head_ids).exp().sum().item()
    assert floor == pytest.approx(1 / (HUGE + 500 * 1_000), rel=1e-12)
    assert head == pytest.approx(501 * 1_000 * floor, rel=1e-12)
    expected = 100_003 * head
    spread = math.sqrt(expected * (1 - head))
    assert abs(100_003 - len(tail) - expected) < 5 * spread  # one seed in 1.7 million


def test_counts_of_a_huge_head_are_found_at_their_exact_ids():
    proposal, ids = few_of_many()
    above = ids[ids % 2 == 1]
    around = torch.stack([above - 1, above, above + 1])
    log_prob = proposal.log_prob(around)
    assert int(above.max()) > 2**31
    np.testing.assert_allclose((log_prob[1] - log_prob[0]).exp(), 501, rtol=1e-12)
    assert torch.equal(log_prob[0], log_prob[2])


def test_the_counts_passed_in_are_not_changed():
    ids, seen = torch.tensor([9, 2, 5]), torch.tensor([4.0, 5.0, 6.0])
    Squashed((ids, seen), num_classes=31).sample(5, generator=stream(0))
    assert ids.tolist() == [9, 2, 5]
    assert seen.tolist() == [4, 5, 6]


def test_the_floor_of_fractions_is_the_least_of_them():
    proposal = Squashed([0.5, 0.25, 0.25, 0.0], alpha=1.0)
    torch.testing.assert_close(
        proposal.log_prob(torch.arange(4)).exp(),
        torch.tensor([0.4, 0.2, 0.2, 0.2], dtype=torch.float64),
    )


def test_a_tuple_of_numbers_is_dense_counts():
    assert Squashed((3, 4)).num_classes == 2
    assert Squashed((3, 4, 5)).num_classes == 3


def test_bad_counts_and_settings_are_refused():
    for alpha in (1.5, None):
        with raises_text(f"alpha must be between 0 and 1, got {alpha}."):
            Squashed([1], alpha=alpha)
    with raises_text(
        "beta must be a finite number above 0, got 0: at 0 an unseen class could never be "
        "drawn. Leave it out for the value of a class seen once."
    ):
        Squashed([1], beta=0)
    with raises_text("all counts are 0: no class was ever seen. Use Uniform(3).", DataError):
        Squashed([0, 0, 0])
    with raises_text("sparse counts (ids, counts) need num_classes=..."):
        Squashed(([1], [2]))
    with raises_text("sparse counts need one count for each id, got 2 ids and 1 counts."):
        Squashed(([1, 2], [2]), num_classes=9)
    with raises_text("class 7 has two counts; sum them first.", DataError):
        Squashed(([7, 2, 7], [1, 2, 3]), num_classes=9)
    with raises_text("count ids holds class 9; expected ids from 0 to 8 (num_classes=9)."):
        Squashed(([9], [2]), num_classes=9)
    with raises_text(
        "num_classes is 3 but counts has 2 entries. Leave num_classes out, or pass sparse "
        "counts (ids, counts)."
    ):
        Squashed([1, 2], num_classes=3)
    with raises_text("counts has shape (2, 3); expected (C,)."):
        Squashed(torch.ones(2, 3))
    with raises_text("num_classes must be at least 1, got 0."):
        Squashed([])
    with raises_text("counts[2] is -3; expected a finite number of at least 0.", DataError):
        Squashed([1, 2, -3])
    with raises_text("counts[1] is nan; expected a finite number of at least 0.", DataError):
        Squashed([1, math.nan])
    with raises_text("ids holds class -1; expected ids from 0 to 1 (num_classes=2)."):
        Squashed([1, 2]).log_prob(torch.tensor([-1]))
