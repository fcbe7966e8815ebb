"""Ranking metrics for one example at a time, from their definitions."""

import math


def clean(ranked, target):
    """The list with repeated and negative ids replaced by None, and the set of true ids."""
    seen, once = set(), []
    for class_id in ranked:
        once.append(class_id if class_id >= 0 and class_id not in seen else None)
        seen.add(class_id)
    return once, {t for t in target if t >= 0}


def precision(ranked, target, k):
    once, true = clean(ranked[:k], target)
    return sum(c in true for c in once) / k


def recall(ranked, target, k):
    once, true = clean(ranked[:k], target)
    return sum(c in true for c in once) / len(true) if true else math.nan


def average_precision(ranked, target, k, normalise):
    once, true = clean(ranked[:k], target)
    if not true:
        return math.nan
    hits, total = 0, 0.0
    for rank, class_id in enumerate(once, start=1):
        if class_id in true:
            hits += 1
            total += hits / rank
    if normalise == "possible":
        return total / min(len(true), k)
    return total / hits if hits else 0.0


def ndcg(ranked, target, k):
    once, true = clean(ranked[:k], target)
    if not true:
        return math.nan
    gain = sum(1 / math.log2(p + 1) for p, c in enumerate(once, start=1) if c in true)
    return gain / sum(1 / math.log2(p + 1) for p in range(1, min(len(true), k) + 1))


def reciprocal_rank(ranked, target):
    once, true = clean(ranked, target)
    if not true:
        return math.nan
    return next((1 / p for p, c in enumerate(once, start=1) if c in true), 0.0)
