"""What is measured on a trained model, where the answer is known."""

import re

import pytest
import torch
from torch import nn

from experiments.shards.overlap import busiest, look
from experiments.synthetic.long_tail import Examples
from tapas.errors import UsageError
from tapas.heads import TapasSoftmax
from tapas.rng import stream
from tapas.tables import LocalTable
from tapas.tables.placement import Placement

C, D, N = 41, 3, 8
SPLIT = Examples(torch.randn(50, D, generator=stream(0, "x")), torch.arange(50) % C)


def head_of(num_shards=1, bias=None, **options):
    """Its pool is every class; rows are small, so that biases decide who is best."""
    table = LocalTable(C, D, num_shards=num_shards, row_optimizer=None)
    with torch.no_grad():
        table.weight.mul_(1e-3)
        table.bias.copy_(torch.arange(C).float() if bias is None else bias)
    return TapasSoftmax(
        table=table, num_samples=N, presample_factor=6, selection="top", **options
    )  # fmt: skip


def by_placement(rows):
    return {(row["placement"], row["shards"]): row for row in rows}


def test_one_shard_is_the_measure_of_all():
    row = by_placement(look(nn.Identity(), head_of(), SPLIT, draws=2))["random", 1]
    assert row["overlap"] == row["kept"] == row["pool_load"] == row["row_load"] == 1


def test_a_cut_through_the_order_keeps_only_the_share_of_the_shard_that_has_all():
    rows = by_placement(look(nn.Identity(), head_of(), SPLIT, draws=2))
    assert rows["contiguous", 2]["overlap"] == 0.5  # the best 8 are 33 .. 40, all in one half
    assert rows["contiguous", 2]["kept"] == 1
    assert ("contiguous", 10) not in rows  # more shards than classes kept
    assert rows["random", 3]["overlap"] >= 0.5


def test_shards_that_share_the_best_evenly_lose_none():
    even = torch.zeros(C)
    even[[0, 1, 2, 3, 37, 38, 39, 40]] = 5.0  # four in each half
    rows = by_placement(look(nn.Identity(), head_of(bias=even), SPLIT, draws=1))
    assert rows["contiguous", 2]["overlap"] == 1


def test_every_draw_has_a_placement_of_its_own():
    one, many = (
        by_placement(look(nn.Identity(), head_of(), SPLIT, draws=draws))["random", 5]
        for draws in (1, 9)
    )
    assert (8 * one["overlap"]) % 1 == 0
    assert (8 * many["overlap"]) % 1 != 0  # a mean over placements that differ


def test_a_model_trained_on_shards_is_looked_at_on_its_own_ones():
    head = head_of(num_shards=3)
    placement = head.table.placement
    (row,) = look(nn.Identity(), head, SPLIT, draws=2)
    shard = placement.shard(torch.arange(33, 41))
    kept = sum(min(int((shard == j).sum()), share) for j, share in enumerate((3, 3, 2)))
    assert (row["placement"], row["shards"]) == ("random", 3)
    assert row["overlap"] == kept / 8


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_look_leaves_the_head_as_it_was(num_shards):
    head = head_of(num_shards)
    head.step = 17
    before = head.table.placement
    look(nn.Identity(), head, SPLIT, draws=1)
    assert head.step == 17
    assert head.table.placement is before


def test_the_busiest_shard_is_relative_to_the_mean():
    halves = Placement(10, 2, kind="contiguous")
    assert busiest(halves, torch.tensor([0, 1, 2, 9])) == 1.5
    assert busiest(halves, torch.tensor([0, 9])) == 1


def test_a_table_that_is_elsewhere_is_refused():
    head = head_of()
    head.table = nn.Identity()
    words = "virtual shards need a LocalTable, got Identity."
    with pytest.raises(UsageError, match=re.escape(words)):
        look(nn.Identity(), head, SPLIT, draws=1)
