"""A synthetic log with a long tail and a known distribution.

Items are spread over groups, Zipf-like inside each. A user's baskets walk from group to
group: with chance `habit` the next basket is of the group that follows this one in a fixed
cycle, else of any group. So

    P(item | last basket of group g)  =  sum_g' P(g' | g) P(item | g')

and a model that reads the last basket can learn all there is to know.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.atomic_file import atomic_write
from tapas.data.event_log import EventLog
from tapas.data.local_files import literal
from tapas.data.splits import EvalPoints
from tapas.errors import UsageError
from tapas.evaluation.scores import LIST_LENGTH
from tapas.shapes import check_positive

TRUTH = "the true distribution"  # the name of its lists among the references


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticLogConfig:
    num_users: int = 4_000
    num_items: int = 50_000
    num_groups: int = 200
    baskets_per_user: int = 40
    items_per_basket: int = 5
    habit: float = 0.8
    exponent: float = 1.0  # of Zipf's law inside a group
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (
            "num_users", "num_items", "num_groups", "baskets_per_user", "items_per_basket"
        ):  # fmt: skip
            check_positive(name, getattr(self, name))
        if self.num_groups > self.num_items:
            raise UsageError(
                f"num_groups is {self.num_groups}, but there are only {self.num_items} items."
            )
        if not 0 <= self.habit <= 1:
            raise UsageError(f"habit must be between 0 and 1, got {self.habit!r}.")


def write_synthetic_log(path: Path, config: SyntheticLogConfig) -> None:
    """Parquet with columns user, item and time; item i belongs to group i % num_groups."""
    draw = np.random.default_rng(config.seed)
    shape = (config.num_users, config.baskets_per_user)
    group = np.empty(shape, dtype=np.int64)
    group[:, 0] = draw.integers(config.num_groups, size=config.num_users)
    for basket in range(1, config.baskets_per_user):
        habitual = draw.random(config.num_users) < config.habit
        elsewhere = draw.integers(config.num_groups, size=config.num_users)
        following = (group[:, basket - 1] + 1) % config.num_groups
        group[:, basket] = np.where(habitual, following, elsewhere)
    rank = _zipf(config, draw, (*shape, config.items_per_basket))
    in_group = -(-(config.num_items - group) // config.num_groups)  # items of each group
    item = group[:, :, None] + config.num_groups * (rank % in_group[:, :, None])
    user = np.broadcast_to(np.arange(config.num_users)[:, None, None], item.shape)
    time = np.broadcast_to(np.arange(config.baskets_per_user)[None, :, None], item.shape)
    frame = pl.DataFrame({"user": user.ravel(), "item": item.ravel(), "time": time.ravel()})
    frame.write_parquet(literal(path))


def _zipf(
    config: SyntheticLogConfig, draw: np.random.Generator, shape: tuple[int, ...]
) -> NDArray[np.int64]:
    """Ranks 0, 1, ... with chances falling like 1 / (rank + 1)^exponent."""
    most = -(-config.num_items // config.num_groups)
    chance = 1 / np.arange(1, most + 1) ** config.exponent
    edges = np.cumsum(chance) / chance.sum()
    return np.searchsorted(edges, draw.random(shape)).astype(np.int64).clip(max=most - 1)


def cached_synthetic_log(config: SyntheticLogConfig, cache: Path) -> Path:
    """The file of a synthetic log in `cache`, written the first time."""
    name = hashlib.blake2b(repr(config).encode(), digest_size=8).hexdigest()
    path = cache / f"made-{name}.parquet"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as unfinished:
            write_synthetic_log(unfinished, config)
    return path


def rank_by_truth(
    made: SyntheticLogConfig, log: EventLog, points: EvalPoints, target: NDArray[np.int64]
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
    best = [each[np.argsort(-chance[each], kind="stable")][:LIST_LENGTH] for each in by_group]
    everywhere = np.argsort(-chance, kind="stable")[: 2 * LIST_LENGTH]
    ranked = np.full((len(points), LIST_LENGTH), -1, dtype=np.int64)
    for row, g in zip(ranked, following, strict=True):
        ids = np.unique(np.concatenate([best[g], everywhere]))
        score = chance[ids] * (made.habit * (group[ids] == g) + elsewhere)
        chosen = ids[np.argsort(-score, kind="stable")][:LIST_LENGTH]
        row[: len(chosen)] = chosen
    wanted = np.maximum(target, 0)
    p = chance[wanted] * (made.habit * (group[wanted] == following[:, None]) + elsewhere)
    real = target >= 0
    loss = -(np.log(p) * real).sum(axis=1) / real.sum(axis=1)
    return torch.from_numpy(ranked), loss
