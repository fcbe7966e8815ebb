"""What a trained model has to be seen beside: counting, and the best that can be done."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.comparison.synthetic_log import SyntheticLogConfig
from tapas.data.event_log import EventLog
from tapas.data.splits import Points, Split
from tapas.evaluation.baselines import Baseline, CoOccurrence, MostPopular, OwnMostFrequent
from tapas.evaluation.scores import TOP

POPULAR, FAVOURITES, FOLLOWERS = "most popular", "the user's favourites", "co-occurrence"
TRUTH = "the true distribution"
COUNTING = (POPULAR, FAVOURITES, FOLLOWERS)
REFERENCES: dict[str, tuple[str, ...]] = {  # what is worth a line on each set
    "linux": (POPULAR,),
    "wikipedia": (POPULAR,),
    "synthetic": (POPULAR, TRUTH),
    "rust": COUNTING,
    "grocery": COUNTING,
}


def rank_by_counting(name: str, log: EventLog, split: Split, points: Points) -> Tensor:
    """Lists (P, 20) of one of `COUNTING`."""
    arrays = (log.items, np.asarray(log.offsets), split.train_counts)
    ranker: Baseline
    if name == POPULAR:
        ranker = MostPopular(*arrays)
    elif name == FAVOURITES:
        ranker = OwnMostFrequent(*arrays)
    else:
        ranker = CoOccurrence(*arrays, times=log.times, train_end=split.train_end)
    return torch.from_numpy(ranker.rank(points.user, points.point, TOP))


def rank_by_truth(
    made: SyntheticLogConfig, log: EventLog, points: Points, target: NDArray[np.int64]
) -> tuple[Tensor, NDArray[np.float64]]:
    """The 20 most probable items (P, 20), and the least possible loss of `target` (P, L) in nats.

        P(item | last basket of group g) = habit P(item | g + 1) + (1 - habit) mean_g' P(item | g')

    Up to this: an item counts once in a basket, however often it was drawn. Items that the
    log never shows cannot be listed.
    """
    num_groups = made.num_groups
    key = np.array(
        [int(k) for k in log.item_keys.keys(np.arange(log.num_items))]
    )  # (C,): group + num_groups * rank
    group, rank = key % num_groups, key // num_groups
    most = -(-made.num_items // num_groups)
    weight = 1 / np.arange(1, most + 1) ** made.exponent
    in_group = -(-(made.num_items - np.arange(num_groups)) // num_groups)
    share = np.zeros((num_groups, most))  # a rank beyond the end of a group begins it again
    for g in range(num_groups):
        np.add.at(share[g], np.arange(most) % in_group[g], weight / weight.sum())
    chance = share[group, rank]  # P(item | its group)
    following = (group[log.items[points.point - 1]] + 1) % num_groups
    elsewhere = (1 - made.habit) / num_groups
    by_group = [np.flatnonzero(group == g) for g in range(num_groups)]
    best = [each[np.argsort(-chance[each], kind="stable")][:TOP] for each in by_group]
    everywhere = np.argsort(-chance, kind="stable")[: 2 * TOP]
    ranked = np.full((len(points), TOP), -1, dtype=np.int64)
    for row, g in zip(ranked, following, strict=True):
        ids = np.unique(np.concatenate([best[g], everywhere]))
        score = chance[ids] * (made.habit * (group[ids] == g) + elsewhere)
        chosen = ids[np.argsort(-score, kind="stable")][:TOP]
        row[: len(chosen)] = chosen
    wanted = np.maximum(target, 0)
    p = chance[wanted] * (made.habit * (group[wanted] == following[:, None]) + elsewhere)
    real = target >= 0
    loss = -(np.log(p) * real).sum(axis=1) / real.sum(axis=1)
    return torch.from_numpy(ranked), loss
