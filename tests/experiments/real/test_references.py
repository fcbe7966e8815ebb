"""What needs no training: counting, and the truth about a made-up log."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.real.cells import SAMPLED, Plan
from experiments.real.runs import execute, open_set
from experiments.real.sets import GROCERY, SYNTHETIC
from tapas.comparison.synthetic_log import TRUTH, SyntheticLogConfig, rank_by_truth
from tapas.errors import UsageError
from tapas.evaluation.baselines import COUNTING, rank_by_counting
from tapas.evaluation.points import spread_points

MADE = SyntheticLogConfig(
    num_users=60, num_items=53, num_groups=4, baskets_per_user=7, items_per_basket=2, exponent=0.9
)
TINY = replace(SYNTHETIC.quick(), made=MADE)


def true_chances(made):
    """(groups, items): P(item | last basket of a group), from the words of the generator."""
    most = -(-made.num_items // made.num_groups)
    zipf = 1 / np.arange(1, most + 1) ** made.exponent
    in_group = np.zeros((made.num_groups, made.num_items))
    for group in range(made.num_groups):
        members = np.arange(group, made.num_items, made.num_groups)
        for rank, weight in enumerate(zipf / zipf.sum()):
            in_group[group, members[rank % len(members)]] += weight
    after = np.zeros_like(in_group)
    for group in range(made.num_groups):
        following = in_group[(group + 1) % made.num_groups]
        after[group] = made.habit * following + (1 - made.habit) * in_group.mean(axis=0)
    return after


@pytest.fixture(scope="module")
def tiny(place):
    log, split = open_set(TINY, place)
    return log, split, spread_points(log, split.test, 100)


def test_the_truth_is_that_of_the_generator(tiny):
    log, _, points = tiny
    chances = true_chances(MADE)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    key = np.array(log.item_keys.keys(np.arange(log.num_items)))
    target = log.items[points.point][:, None].astype(np.int64)
    ranked, loss = rank_by_truth(MADE, log, points, target)
    for row, wanted, found, cost in zip(points.point, target[:, 0], ranked, loss, strict=True):
        chance = chances[key[log.items[row - 1]] % MADE.num_groups]
        listed = chance[key[found.numpy()]]
        best = np.sort(chance[key])[::-1][:20]
        np.testing.assert_allclose(listed, best)
        assert cost == pytest.approx(-np.log(chance[key[wanted]]))


def test_padding_costs_nothing(tiny):
    log, _, points = tiny
    one = log.items[points.point][:, None].astype(np.int64)
    padded = np.concatenate([one, np.full_like(one, -1)], axis=1)
    _, loss = rank_by_truth(MADE, log, points, one)
    _, same = rank_by_truth(MADE, log, points, padded)
    np.testing.assert_array_equal(loss, same)


@pytest.mark.parametrize("name", COUNTING)
def test_counting_gives_lists_of_distinct_items(name, tiny):
    log, split, points = tiny
    ranked = rank_by_counting(name, log, split, points)
    assert ranked.shape == (len(points), 20)
    for row in ranked:
        assert len(torch.unique(row[row >= 0])) == int((row >= 0).sum())


def test_favourites_are_ones_own(tiny):
    log, split, points = tiny
    ranked = rank_by_counting("the user's favourites", log, split, points)
    first = log.items[log.offsets[points.user[0]] : points.point[0]]
    ids, count = np.unique(first, return_counts=True)
    assert count[ids == int(ranked[0, 0])] == count.max()


def test_references_are_judged_where_runs_are(place):
    plan = Plan(SYNTHETIC, quick=True)
    references = [execute(run, place) for run in plan.references(None)]
    trained = execute(plan.run(SAMPLED, 0.1, 0.75, 0), place)
    for result in references:
        assert result["blocks"]["points"] == trained["blocks"]["points"]
    truth = references[-1]
    assert truth["run"]["method"] == TRUTH
    assert truth["loss"] < trained["loss"]
    assert "loss" not in references[0]


def test_nobody_knows_the_truth_about_groceries(place, monkeypatch):
    run = replace(Plan(SYNTHETIC, quick=True).references(None)[-1], set=GROCERY.name)
    quick = GROCERY.quick()
    monkeypatch.setattr(type(run), "real_set", property(lambda self: replace(quick, made=None)))
    monkeypatch.setattr(
        "experiments.real.runs.open_set", lambda real_set, place: open_set(quick, place)
    )
    with pytest.raises(UsageError, match="nobody knows the true distribution of grocery"):
        execute(run, place)
