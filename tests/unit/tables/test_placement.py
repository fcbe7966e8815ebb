import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle.proposals import p_value

from tapas import UsageError
from tapas.rng import stream
from tapas.tables.placement import Placement

HUGE = 3_000_000_000


@pytest.mark.parametrize("num_shards", [2, 7, 8])
@pytest.mark.parametrize("num_classes", [100_003, 2**20, HUGE])
def test_frequent_classes_are_spread_over_shards_at_random(num_classes, num_shards):
    """Low ids are frequent if ids are sorted by frequency; strided ids if tables were merged."""
    share, placement = 1 / num_shards, Placement(num_classes, num_shards)
    far = 2 ** int(np.log2(num_classes / 2_003))  # leaves the low bits of every id 0
    for stride in (1, 48, far):
        shard = placement.shard(torch.arange(2_003) * stride).numpy()
        spread = np.sqrt(2_003 * share * (1 - share))
        # 27 settings of at most 8 + 1 numbers: a fair placement fails one seed in 10,000
        counts = np.bincount(shard, minlength=num_shards)
        assert abs(counts - 2_003 * share).max() < 5.1 * spread
        # neighbours must not alternate either, which would be too even
        same = (shard[1:] == shard[:-1]).sum()
        assert abs(same - 2_002 * share) < 5.1 * spread


def test_placements_of_two_seeds_are_independent():
    ids = torch.arange(5_003)
    one, other = (Placement(100_003, 5, seed=seed).shard(ids) for seed in (0, 1))
    both = np.bincount((one * 5 + other).numpy(), minlength=25)
    assert p_value(both, np.full(25, 1 / 25)) > 1e-6  # fails one pair of seeds in a million


def test_a_placement_never_changes_between_versions():
    """Checkpoints store rows by shard."""
    assert Placement(1009, 7, seed=3).permute(torch.arange(8)).tolist() == [
        46,
        443,
        839,
        842,
        591,
        503,
        719,
        242,
    ]


def test_the_permutation_does_not_depend_on_the_number_of_shards():
    ids = torch.arange(1009)
    assert torch.equal(Placement(1009, 2).permute(ids), Placement(1009, 5).permute(ids))


def test_ids_up_to_three_billion_stay_distinct_and_in_range():
    placement = Placement(HUGE, 11)
    tail = torch.arange(HUGE - 10_007, HUGE)
    anywhere = torch.randint(HUGE, (10_007,), generator=stream(0, "ids"))
    for ids in (tail, anywhere.unique()):
        moved = placement.permute(ids)
        assert len(moved.unique()) == len(ids)
        assert int(moved.min()) >= 0
        assert int(moved.max()) < HUGE
        assert int(moved.max()) > 2**31
    cell = (placement.permute(tail) // 300_000_000).numpy()
    # neighbours are spread at random: fails for one seed in a million
    assert p_value(np.bincount(cell, minlength=10), np.full(10, 0.1)) > 1e-6


def test_placement_does_not_depend_on_shape_and_integer_type():
    """The keyed products need 64 bits; an int32 id would overflow to another shard."""
    placement, ids = Placement(1009, 7), torch.arange(1008)
    shard = placement.shard(ids)
    for dtype in (torch.int32, torch.int16):
        assert torch.equal(placement.shard(ids.to(dtype)), shard)
    assert torch.equal(placement.shard(ids.reshape(6, 168)), shard.reshape(6, 168))
    assert placement.shard(ids[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Placement(3, 4), "cannot spread 3 classes over 4 shards. Use at most 3."),
        (lambda: Placement(0, 1), "num_classes must be at least 1, got 0."),
        (lambda: Placement(3, 0), "num_shards must be at least 1, got 0."),
        (lambda: Placement(3, 1.5), "num_shards must be an integer, got 1.5."),
        (lambda: Placement(3, 1, kind="x"), "placement must be random or contiguous, got 'x'."),
        (
            # cycle walking would never end for an id out of range
            lambda: Placement(31, 3).shard(torch.tensor([64])),
            "ids holds class 64; expected ids from 0 to 30 (num_classes=31).",
        ),
        (
            lambda: Placement(31, 3).permute(torch.tensor([-1])),
            "ids holds class -1; expected ids from 0 to 30 (num_classes=31).",
        ),
    ],
)
def test_impossible_placements_are_refused(call, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        call()


@given(
    st.integers(1, 2000),
    st.integers(1, 19),
    st.integers(),
    st.sampled_from(["random", "contiguous"]),
)
def test_shards_are_consecutive_ranges_that_cover_the_order(num_classes, num_shards, seed, kind):
    num_shards = min(num_shards, num_classes)
    placement = Placement(num_classes, num_shards, seed=seed, kind=kind)
    starts = [placement.start(shard) for shard in range(num_shards + 1)]
    assert (starts[0], starts[-1]) == (0, num_classes)
    sizes = [placement.size(shard) for shard in range(num_shards)]
    assert sizes == np.diff(starts).tolist()
    assert max(sizes) - min(sizes) <= 1 <= min(sizes)
    shard = torch.arange(num_shards).repeat_interleave(torch.tensor(sizes))
    assert torch.equal(placement.shard_at(torch.arange(num_classes)), shard)
    ids = [placement.ids_of(number) for number in range(num_shards)]
    assert torch.equal(torch.cat(ids).sort().values, torch.arange(num_classes))
    for number, mine in enumerate(ids):
        assert bool((placement.shard(mine) == number).all())
        assert torch.equal(placement.permute(mine) - starts[number], torch.arange(sizes[number]))


def test_ranges_of_a_billion_classes():
    placement = Placement(HUGE, 7)
    edges = torch.tensor([placement.start(shard) for shard in range(1, 7)])
    assert placement.shard_at(edges).tolist() == [1, 2, 3, 4, 5, 6]
    assert placement.shard_at(edges - 1).tolist() == [0, 1, 2, 3, 4, 5]
    assert torch.equal(placement.permute(placement.ids_at(edges)), edges)


def test_contiguous_placement_keeps_ids_in_order_for_any_seed():
    placement = Placement(31, 3, kind="contiguous", seed=5)
    assert torch.equal(placement.permute(torch.arange(31)), torch.arange(31))
    assert [placement.ids_of(shard).tolist() for shard in range(3)] == [
        list(range(11)),
        list(range(11, 21)),
        list(range(21, 31)),
    ]
    for verb, name in ((placement.permute, "ids"), (placement.ids_at, "positions")):
        with pytest.raises(UsageError) as error:
            verb(torch.tensor([31]))
        assert str(error.value) == (
            f"{name} holds class 31; expected ids from 0 to 30 (num_classes=31)."
        )
