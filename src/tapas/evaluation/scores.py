"""Scores of ranked lists: metrics with bootstrap intervals, and recall by class frequency.

    interval = 2.5 % and 97.5 % quantiles of the mean over 1,000 resamples of the examples

Examples are resampled one by one, so intervals are too narrow if a user has several examples.
`tapas.evaluation.intervals` resamples users instead.
"""

import math
from collections.abc import Mapping, Sequence
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

LIST_LENGTH = 20  # ids of each ranked list that are evaluated
CUTOFFS = (5, 10, LIST_LENGTH)  # of metrics, besides precision@1
RESAMPLES = 1_000
DRAWS_PER_CHUNK = 1 << 22
BUCKETS = ("head", "middle", "tail", "unseen")
RankedLists = tuple[Tensor, Tensor | None]  # items (P, 20), best first, and losses (P,) if known


@dataclass(frozen=True, slots=True)
class Bucket:
    """Classes of similar training frequency, and how well the lists find them."""

    num_classes: int
    num_targets: int  # distinct targets of an example, summed over the examples
    recall: Interval | None  # share of these targets in the first 20 ids; None without targets
    share: float  # share of all recommended ids that are classes of this bucket


@dataclass(frozen=True, slots=True)
class Scores:
    """Result of `score_lists`. `dataclasses.asdict` turns it into plain JSON values."""

    num_examples: int  # examples with at least one target; others are ignored
    metrics: dict[str, Interval]
    buckets: dict[str, Bucket]  # head, middle, tail, unseen
    coverage: int  # distinct classes in the first 20 ids of all lists


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

    Negative ids are padding in both. `train_counts` (C,) is the number of training events of each
    class, `loss` (P,) the full softmax loss in nats, if known; `k` is that of precision@k. Targets
    never seen in training count like all others.

    Buckets, by decreasing training count: the head is the fewest classes that make up half of
    the training events, the tail all classes after the fewest that make up 90 %, the middle those
    between; classes with count 0 are unseen.

    Raises `UsageError` for wrong shapes or ids or if no example has a target, `DataError` if a
    loss is NaN or infinite.
    """
    found, _ = score_together(
        {"": (ranked, loss)}, target, train_counts=train_counts, k=k, seed=seed
    )
    return found[""]


def score_together(
    lists: Mapping[str, RankedLists],
    target: Tensor,
    *,
    train_counts: Tensor,
    k: int = 5,
    cutoffs: Sequence[int] = CUTOFFS,
    seed: int = 0,
) -> tuple[dict[str, Scores], dict[str, Interval]]:
    """`score_lists` of several lists, and MAP@20 of the first minus that of each other, paired.

    Resamples are drawn once for all. `cutoffs` are those of `metrics_per_example`.
    """
    sizes = check_shape({}, train_counts=(train_counts, "C"), target=(target, "P L"))
    target, train_counts = target.cpu(), train_counts.cpu()
    lists = {name: (ranked.cpu(), loss) for name, (ranked, loss) in lists.items()}
    check_ids("target", check_integer("target", target).clamp(min=0), sizes["C"])
    for ranked, _ in lists.values():
        check_shape(sizes, ranked=(ranked, "P K"))
        check_ids("ranked", check_integer("ranked", ranked).clamp(min=0), sizes["C"])
    has_target = (target >= 0).any(dim=1)
    if not bool(has_target.any()):
        raise UsageError("no example has a target: there is nothing to score.")
    values, tables = dict[str, dict[str, Tensor]](), dict[tuple[str, str], Tensor]()
    bucket_of, true = bucket_classes(train_counts), target[has_target].long()
    for name, (ranked, loss) in lists.items():
        found = metrics_per_example(ranked, target, k=k, cutoffs=cutoffs)
        if loss is not None:
            check_shape(sizes, loss=(loss, "P"))
            found["loss"] = _finite(loss.cpu(), has_target)
        values[name] = {metric: value[has_target].double() for metric, value in found.items()}
        tables[name, "metrics"] = torch.stack(list(values[name].values()), dim=1)
        tables[name, "buckets"] = _hits_and_targets(
            ranked[has_target, :LIST_LENGTH], true, bucket_of
        )
    first, *others = (found[f"map@{LIST_LENGTH}"] for found in values.values())
    for name, other in zip(list(lists)[1:], others, strict=True):
        tables[name, "lead"] = (first - other)[:, None]
    sums = dict(zip(tables, _resampled_sums(list(tables.values()), seed), strict=True))
    scores = {
        name: Scores(
            num_examples=len(true),
            metrics=_intervals(list(values[name]), tables[name, "metrics"], sums[name, "metrics"]),
            buckets=_buckets(listed, bucket_of, tables[name, "buckets"], sums[name, "buckets"]),
            coverage=int(torch.bincount(listed).count_nonzero()),
        )
        for name, (ranked, _) in lists.items()
        for listed in [_listed(ranked[has_target, :LIST_LENGTH])]
    }
    leads = {
        name: _intervals([""], tables[name, "lead"], sums[name, "lead"])[""]
        for name in list(lists)[1:]
    }
    return scores, leads


def _finite(loss: Tensor, has_target: Tensor) -> Tensor:
    """`loss` (P,); an error if that of an example with a target is NaN or infinite."""
    bad = (has_target & ~loss.isfinite()).nonzero()
    if len(bad):
        raise DataError(
            f"loss of example {int(bad[0])} is {float(loss[bad[0]])}. The model has diverged: "
            "evaluate an earlier checkpoint, or train with a lower learning rate."
        )
    return loss


def metrics_per_example(
    ranked: Tensor, target: Tensor, *, k: int = 5, cutoffs: Sequence[int] = (LIST_LENGTH,)
) -> dict[str, Tensor]:
    """Values (P,) of every metric for `ranked` (P, K >= 20) and `target`, (P,) or (P, L).

    `k` is that of precision@k, `cutoffs` are those of recall, NDCG, MRR, MAP and the hit rate. NaN
    for an example without targets.
    """
    target = target[:, None] if target.dim() == 1 else target
    found = {
        "precision@1": precision_at_k(ranked, target, 1),
        f"precision@{k}": precision_at_k(ranked, target, k),
        f"map@{LIST_LENGTH}-hits": average_precision_at_k(
            ranked, target, LIST_LENGTH, normalise="hits"
        ),
    }
    for cutoff in sorted(cutoffs, reverse=True):
        recall = recall_at_k(ranked, target, cutoff)
        found |= {
            f"map@{cutoff}": average_precision_at_k(ranked, target, cutoff),
            f"recall@{cutoff}": recall,
            f"ndcg@{cutoff}": ndcg_at_k(ranked, target, cutoff),
            f"mrr@{cutoff}": reciprocal_rank(ranked[:, :cutoff], target),
            f"hit-rate@{cutoff}": (recall > 0).to(recall.dtype),
        }
    without = ~(target >= 0).any(dim=1)
    return {name: value.masked_fill(without, math.nan) for name, value in found.items()}


def paired_difference(a: Tensor, b: Tensor, *, seed: int = 0) -> Interval:
    """Interval of the mean of a - b, (P,) each, resampled in pairs.

    NaN marks an example without a value; it must be NaN in both and is ignored. The difference
    is significant if the interval excludes 0.
    """
    check_shape({}, a=(a, "P"), b=(b, "P"))
    unpaired = (a.isnan() != b.isnan()).nonzero()
    if len(unpaired):
        raise UsageError(
            f"example {int(unpaired[0])} is NaN in one of a and b, but not in the other. "
            "Compare values of the same examples, in the same order."
        )
    difference = (a.double() - b.double())[~a.isnan()]
    if not len(difference):
        raise UsageError("no example has a value: there is nothing to compare.")
    table = difference[:, None]
    return _intervals([""], table, _resampled_sums([table], seed)[0])[""]


def _intervals(names: Sequence[str], table: Tensor, sums: Tensor) -> dict[str, Interval]:
    """Intervals of the means of the columns of `table` (P, M), resampled `sums` (R, M)."""
    means = sums / len(table)
    return {
        name: _interval(float(table[:, column].mean()), means[:, column], len(table))
        for column, name in enumerate(names)
    }


def _resampled_sums(tables: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Sums over P rows drawn with replacement from each table (P, M), 1,000 times: (R, M).

    The same rows are drawn from all tables. Each has a product of its own, so that the bits of
    its sums do not depend on the other tables.
    """
    num_examples = len(tables[0])
    generator = stream(seed, "bootstrap")
    sums = [list[Tensor]() for _ in tables]
    at_once = max(1, DRAWS_PER_CHUNK // num_examples)
    for start in range(0, RESAMPLES, at_once):
        shape = (min(at_once, RESAMPLES - start), num_examples)
        drawn = torch.randint(num_examples, shape, generator=generator)
        one = torch.ones((), dtype=torch.float64).expand(shape)
        times = torch.zeros(shape, dtype=torch.float64).scatter_add_(1, drawn, one)
        for each, table in zip(sums, tables, strict=True):
            each.append(times @ table)
    return [torch.cat(each) for each in sums]


def _interval(value: float, resampled: Tensor, num_examples: int) -> Interval:
    """`value` with the 2.5 % and 97.5 % quantiles of `resampled` (R,), ignoring NaN."""
    resampled = resampled[~resampled.isnan()]
    if num_examples == 1 or not len(resampled):
        return Interval(value, -math.inf, math.inf)
    low, high = resampled.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(value, low, high)


def _listed(top: Tensor) -> Tensor:
    return top[top >= 0].long()


def _hits_and_targets(top: Tensor, target: Tensor, bucket_of: Tensor) -> Tensor:
    """(P, 8) for each bucket, how many of its targets an example finds in `top`, and has."""
    is_target = first_occurrences(target) & (target >= 0)
    found = torch.zeros_like(is_target)
    for column in top.unbind(dim=1):
        found |= target == column[:, None]
    target_bucket = bucket_of[target.clamp(min=0)]
    counts = []
    for number in range(len(BUCKETS)):
        mine = is_target & (target_bucket == number)
        counts += [(mine & found).sum(dim=1), mine.sum(dim=1)]
    return torch.stack(counts, dim=1).double()


def _buckets(
    listed: Tensor, bucket_of: Tensor, counts: Tensor, resampled: Tensor
) -> dict[str, Bucket]:
    """Buckets with hits and targets `counts` (P, 8) and their `resampled` sums (R, 8)."""
    num_classes = torch.bincount(bucket_of, minlength=len(BUCKETS)).tolist()
    num_listed = torch.bincount(bucket_of[listed], minlength=len(BUCKETS)).tolist()
    buckets = {}
    for number, name in enumerate(BUCKETS):
        mine = slice(2 * number, 2 * number + 2)
        num_hits, num_targets = counts[:, mine].sum(dim=0).tolist()
        recall = None
        if num_targets:
            # hits and targets are resampled together: both sums of the ratio are random
            hits, targets = resampled[:, mine].unbind(dim=1)
            recall = _interval(num_hits / num_targets, hits / targets, len(counts))
        buckets[name] = Bucket(
            num_classes=num_classes[number],
            num_targets=int(num_targets),
            recall=recall,
            share=num_listed[number] / max(1, len(listed)),
        )
    return buckets


def bucket_classes(train_counts: Tensor) -> Tensor:
    """The bucket of each class, (C,): 0 head, 1 middle, 2 tail, 3 unseen.

    >>> bucket_classes(torch.tensor([0, 10, 3, 3, 3, 1]))
    tensor([3, 0, 1, 1, 1, 2])
    """
    counts = check_integer("train_counts", train_counts)
    bucket = torch.full_like(counts, 3, dtype=torch.int64)
    seen = counts.nonzero()[:, 0]
    count, order = counts[seen].sort(descending=True, stable=True)
    before = count.cumsum(0) - count  # events of all more frequent classes
    total = int(count.sum())
    bucket[seen[order]] = (2 * before >= total).long() + (10 * before >= 9 * total).long()
    return bucket
