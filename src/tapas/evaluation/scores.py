"""How good ranked lists are: means with their intervals, and where in the long tail they hit.

    interval = 2.5 % and 97.5 % points of the mean over 1,000 resamples of the examples

Examples are resampled one by one, so that the interval is too narrow if several of them
are about one user.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tapas.candidates import first_occurrences
from tapas.errors import DataError, UsageError
from tapas.evaluation.intervals import Interval
from tapas.metrics import (
    average_precision_at_k,
    ndcg_at_k,
    precision_at_k,
    recall_at_k,
    reciprocal_rank,
)
from tapas.rng import stream
from tapas.shapes import check_ids, check_integer, check_shape

LIST_LENGTH = 20  # places of a list that are looked at
RESAMPLES = 1_000
DRAWS_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True)
class Bucket:
    """Classes of similar frequency: what they ask for and what they are given."""

    num_classes: int
    num_targets: int  # distinct targets of an example, summed over the examples
    recall: Interval | None  # share of these found in the first 20 places; None without any
    share: float  # of all places that recommend something, those that name such a class


@dataclass(frozen=True, slots=True)
class Scores:
    """What `judge` found. `dataclasses.asdict` makes it plain enough for JSON."""

    num_examples: int  # those with a target; the others are left out
    metrics: dict[str, Interval]
    buckets: dict[str, Bucket]  # head, middle, tail, unseen
    coverage: int  # distinct classes in the first 20 places of all lists


def score_lists(
    ranked: Tensor,
    target: Tensor,
    *,
    train_counts: Tensor,
    loss: Tensor | None = None,
    k: int = 5,
    seed: int = 0,
) -> Scores:
    """Scores of the lists `ranked` (P, K >= 20), best first, against `target` (P, L).

    Negative ids are padding on both sides. `train_counts` (C,) says how often a class is in
    the training data, `loss` (P,) are nats of the full softmax, if known. A target never
    seen in training stays a target: nothing is left out because it is hard.

    Buckets, by falling training count: the head are the fewest classes that hold half of
    the training events, the tail is what is left after the fewest that hold 90 %, the
    middle lies between; classes with count 0 are unseen.
    """
    sizes = check_shape({}, train_counts=(train_counts, "C"), target=(target, "P L"))
    sizes = check_shape(sizes, ranked=(ranked, "P K"))
    ranked, target, train_counts = ranked.cpu(), target.cpu(), train_counts.cpu()
    for name, ids in (("ranked", ranked), ("target", target)):
        check_ids(name, check_integer(name, ids).clamp(min=0), sizes["C"])
    judged = (target >= 0).any(dim=1)
    if not bool(judged.any()):
        raise UsageError("no example has a target: there is nothing to judge.")
    values = metrics_per_example(ranked, target, k=k)
    if loss is not None:
        check_shape(sizes, loss=(loss, "P"))
        loss = loss.cpu()
        bad = (judged & ~loss.isfinite()).nonzero()
        if len(bad):
            raise DataError(
                f"loss of example {int(bad[0])} is {float(loss[bad[0]])}. The model has diverged: "
                "judge an earlier checkpoint or lower the learning rate."
            )
        values["loss"] = loss
    top = ranked[judged, :LIST_LENGTH].long()
    return Scores(
        num_examples=int(judged.sum()),
        metrics=_intervals({name: value[judged] for name, value in values.items()}, seed),
        buckets=_buckets(top, target[judged].long(), train_counts, seed),
        coverage=int(torch.bincount(top[top >= 0]).count_nonzero()),
    )


def metrics_per_example(ranked: Tensor, target: Tensor, *, k: int = 5) -> dict[str, Tensor]:
    """Every metric of every example, (P,) each; NaN for an example without targets."""
    found = {
        "precision@1": precision_at_k(ranked, target, 1),
        f"precision@{k}": precision_at_k(ranked, target, k),
        f"map@{LIST_LENGTH}": average_precision_at_k(ranked, target, LIST_LENGTH),
        f"map@{LIST_LENGTH}-hits": average_precision_at_k(
            ranked, target, LIST_LENGTH, normalise="hits"
        ),
        f"recall@{LIST_LENGTH}": recall_at_k(ranked, target, LIST_LENGTH),
        f"ndcg@{LIST_LENGTH}": ndcg_at_k(ranked, target, LIST_LENGTH),
        f"mrr@{LIST_LENGTH}": reciprocal_rank(ranked[:, :LIST_LENGTH], target),
    }
    without = ~(target >= 0).any(dim=1)
    return {name: value.masked_fill(without, math.nan) for name, value in found.items()}


def paired_difference(a: Tensor, b: Tensor, *, seed: int = 0) -> Interval:
    """Mean of a - b over the examples both judged, (P,) each, resampled in pairs.

    Examples without a value (NaN) must be the same in both and are left out. An interval
    that does not hold 0 is a difference.
    """
    check_shape({}, a=(a, "P"), b=(b, "P"))
    alone = (a.isnan() != b.isnan()).nonzero()
    if len(alone):
        raise UsageError(
            f"example {int(alone[0])} has a value in one of a and b and none in the other. "
            "Compare values of the same examples, in the same order."
        )
    difference = (a.double() - b.double())[~a.isnan()]
    if not len(difference):
        raise UsageError("no example has a value: there is nothing to compare.")
    return _intervals({"difference": difference}, seed)["difference"]


def _intervals(values: dict[str, Tensor], seed: int) -> dict[str, Interval]:
    """Interval of the mean of each of `values` (P,), all on the same resamples."""
    table = torch.stack([value.detach().cpu().double() for value in values.values()], dim=1)
    means = _resampled_sums(table, seed) / len(table)
    return {
        name: _interval(float(table[:, place].mean()), means[:, place], len(table))
        for place, name in enumerate(values)
    }


def _resampled_sums(table: Tensor, seed: int) -> Tensor:
    """Sums over P examples drawn with replacement from `table` (P, M), 1,000 times: (R, M)."""
    num_examples = len(table)
    generator = stream(seed, "bootstrap")
    sums = []
    at_once = max(1, DRAWS_AT_ONCE // num_examples)
    for start in range(0, RESAMPLES, at_once):
        shape = (min(at_once, RESAMPLES - start), num_examples)
        drawn = torch.randint(num_examples, shape, generator=generator)
        one = torch.ones((), dtype=torch.float64).expand(shape)
        sums.append(torch.zeros(shape, dtype=torch.float64).scatter_add_(1, drawn, one) @ table)
    return torch.cat(sums)


def _interval(value: float, resampled: Tensor, num_examples: int) -> Interval:
    """`value` between the 2.5 % and 97.5 % points of `resampled` (R,), NaN left out."""
    resampled = resampled[~resampled.isnan()]
    if num_examples == 1 or not len(resampled):
        return Interval(value, -math.inf, math.inf)
    low, high = resampled.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(value, low, high)


def _buckets(top: Tensor, target: Tensor, train_counts: Tensor, seed: int) -> dict[str, Bucket]:
    bucket_of = bucket_classes(train_counts)
    asked = first_occurrences(target) & (target >= 0)
    found = torch.zeros_like(asked)
    for column in top.unbind(dim=1):
        found |= target == column[:, None]
    wanted = bucket_of[target.clamp(min=0)]
    given = bucket_of[top[top >= 0]]
    buckets = {}
    for place, name in enumerate(("head", "middle", "tail", "unseen")):
        mine = asked & (wanted == place)
        # hits and targets of each example: their ratio is resampled, as both are chance
        counts = torch.stack([(mine & found).sum(dim=1), mine.sum(dim=1)], dim=1).double()
        num_hits, num_targets = counts.sum(dim=0).tolist()
        recall = None
        if num_targets:
            hits, targets = _resampled_sums(counts, seed).unbind(dim=1)
            recall = _interval(num_hits / num_targets, hits / targets, len(counts))
        buckets[name] = Bucket(
            num_classes=int((bucket_of == place).sum()),
            num_targets=int(num_targets),
            recall=recall,
            share=int((given == place).sum()) / max(1, len(given)),
        )
    return buckets


def bucket_classes(train_counts: Tensor) -> Tensor:
    """(C,) 0 for a class of the head, 1 of the middle, 2 of the tail, 3 for an unseen one.

    >>> bucket_classes(torch.tensor([0, 10, 3, 3, 3, 1]))
    tensor([3, 0, 1, 1, 1, 2])
    """
    count, order = check_integer("train_counts", train_counts).sort(descending=True, stable=True)
    before = count.cumsum(0) - count  # events of all more frequent classes
    total = int(count.sum())
    bucket = (2 * before >= total).long() + (10 * before >= 9 * total).long()
    bucket[count == 0] = 3
    return torch.empty_like(bucket).scatter_(0, order, bucket)
