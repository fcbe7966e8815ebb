"""The points at which models are evaluated, and evaluation summed by blocks of users."""

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints, Split, next_items_at
from tapas.evaluation.ranked_lists import ListOptions, Predictor, ranked_lists
from tapas.evaluation.scores import metrics_per_example, score_lists
from tapas.metrics import ndcg_at_k
from tapas.rng import stream

NUM_BLOCKS = 50


def sample_users(held_out: EvalPoints, most: int) -> EvalPoints:
    """One point for each held-out user, the first behind the cut, of at most `most` users.

    The users are in an order that is random and always the same, so that the first few are a fair
    sample of all, and `tapas evaluate --users` has the same users as `tapas compare`.
    """
    draw = np.random.default_rng(stream(0, "sampled users").initial_seed())
    return held_out[draw.permutation(len(held_out))[:most]]


def describe_points(num_judged: int, num_users: int, num_targets: int, num_items: int) -> str:
    """The points of an evaluation, in a sentence.

    >>> describe_points(1302, 1302, 5, 13641)
    '1,302 users, one point each; the next 5 items of each are to be found among all 13,641.'
    """
    users = f"{num_judged:,}" if num_judged == num_users else f"{num_judged:,} of {num_users:,}"
    what = (
        "the next item of each is"
        if num_targets == 1
        else f"the next {num_targets} items of each are"
    )
    return (
        f"{users} user{'' if num_users == 1 else 's'}, one point each; {what} to be found among "
        f"all {num_items:,}."
    )


def spread_points(log: EventLog, held_out: EvalPoints, most: int, *, seed: int = 0) -> EvalPoints:
    """Up to `most` starts of baskets within `held_out`, spread evenly over the users.

    They are in random order, so that the first few are a fair sample of all.
    """
    if not len(held_out):
        return held_out
    draw = np.random.default_rng(stream(seed, "judged points").initial_seed())
    each = -(-most // len(held_out))
    user, point, limit = [], [], []
    for u, first, last in zip(held_out.user, held_out.point, held_out.limit, strict=True):
        time = log.times[first:last]
        begins = first + np.flatnonzero(np.append(True, time[1:] != time[:-1]))
        chosen = draw.permutation(begins)[:each]
        point.append(chosen)
        user.append(np.full(len(chosen), u))
        limit.append(np.full(len(chosen), last))
    order = draw.permutation(sum(map(len, point)))[:most]
    parts = (np.concatenate(p).astype(np.int64)[order] for p in (user, point, limit))
    return EvalPoints(*parts)


def block_sums(value: NDArray[np.float64], user: NDArray[np.int64]) -> list[float]:
    """Sums of `value` (P,) over 50 blocks of users.

    All points of a user are in one block, so blocks are independent although the points of a user
    are not. Intervals are computed by resampling blocks.
    """
    sums = np.bincount(user % NUM_BLOCKS, weights=value, minlength=NUM_BLOCKS)
    return [round(float(s), 5) for s in sums]


class PointEvaluator:
    """Evaluates models at fixed points by exact ranking over all classes.

    The targets of a point are the next `num_targets` items; the model sees the last `history`.
    `excluded_class` is never listed.
    """

    def __init__(
        self,
        log: EventLog,
        split: Split,
        points: EvalPoints,
        num_targets: int,
        history: int,
        excluded_class: int | None = None,
    ):
        self.log, self.points = log, points
        self.options = ListOptions(history, excluded_class=excluded_class)
        self.target = next_items_at(log, points, num_targets)
        self.train_counts = torch.from_numpy(split.train_counts)

    def rank(self, model: Predictor, most: int) -> tuple[Tensor, NDArray[np.float64]]:
        """Ranked lists (P, 20) and full softmax losses (P,) at the first P = `most` points."""
        points, target = self.points[:most], self.target[:most]
        ranked, loss = ranked_lists(model, self.log, points, target, self.options)
        return ranked, cast(Tensor, loss).double().numpy()

    def quick_scores(self, ranked: Tensor, loss: NDArray[np.float64], most: int) -> dict[str, Any]:
        """MAP@20 and loss at the first `most` points, and the sums of MAP@20 by block."""
        found = self._scores(ranked[:most], loss[:most])
        return {**found, "blocks": found["blocks"]["map@20"]}

    def scores(self, ranked: Tensor, loss: NDArray[np.float64] | None) -> dict[str, Any]:
        """MAP@20 and loss at all points, recall@20, NDCG@10, coverage and recall by frequency."""
        target = torch.from_numpy(self.target)
        scores = score_lists(ranked, target, train_counts=self.train_counts)
        return {
            **self._scores(ranked, loss),
            "recall@20": round(scores.metrics["recall@20"].mean, 6),
            "ndcg@10": round(float(ndcg_at_k(ranked, target, 10).mean()), 6),
            "coverage": scores.coverage,
            "buckets": {
                name: {
                    "recall": round(bucket.recall.mean, 6) if bucket.recall else None,
                    "share": round(bucket.share, 6),
                    "targets": bucket.num_targets,
                }
                for name, bucket in scores.buckets.items()
            },
        }

    def _scores(self, ranked: Tensor, loss: NDArray[np.float64] | None) -> dict[str, Any]:
        size = len(ranked)
        precision = (
            metrics_per_example(ranked, torch.from_numpy(self.target[:size]))["map@20"]
            .double()
            .numpy()
        )
        user = self.points.user[:size]
        found: dict[str, Any] = {"map@20": round(float(precision.mean()), 6)}
        blocks = {"points": self.block_sizes(size), "map@20": block_sums(precision, user)}
        if loss is not None:
            found["loss"] = round(float(loss.mean()), 5)
            blocks["loss"] = block_sums(loss, user)
        return {**found, "blocks": blocks}

    def block_sizes(self, most: int) -> list[float]:
        """Number of points of each block, among the first `most`."""
        user = self.points.user[:most]
        return block_sums(np.ones(len(user)), user)
