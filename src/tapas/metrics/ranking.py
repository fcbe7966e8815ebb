"""Ranking metrics over lists of class ids: one number for each example.

`ranked` (B, N) are predicted ids, best first, -1 for "none"; `target` (B, L) are the true
ids, negative for padding. A true id is counted once, however often it is listed on
either side. Metrics look at ids, never at scores, so that ties cannot be counted as hits:
whoever ranks decides them, by id (`head.top`) or at random (`rank_classes`).
"""

import torch
from torch import Tensor

from tapas.candidates import first_occurrences
from tapas.errors import UsageError
from tapas.rng import stream
from tapas.shapes import check_integer, check_positive, check_shape


def rank_classes(scores: Tensor, k: int, *, seed: int = 0) -> Tensor:
    """Ids of the k best of dense `scores` (B, C), ties broken at random: (B, k).

    A model that scores everything the same is ranked at random and so gets chance level.
    Give every batch a seed of its own (its number, say), or all share one shuffle.
    """
    sizes = check_shape({}, scores=(scores, "B C"))
    if check_positive("k", k) > sizes["C"]:
        raise UsageError(f"k is {k}, but there are only {sizes['C']} classes.")
    if bool(scores.isnan().any()):
        raise UsageError("scores hold NaN, which has no rank.")
    shuffle = torch.rand(
        scores.shape, generator=stream(seed, "ties"), dtype=torch.float64, device="cpu"
    )
    shuffle = shuffle.argsort(dim=1).to(scores.device)
    order = scores.gather(1, shuffle).sort(dim=1, descending=True, stable=True).indices[:, :k]
    return shuffle.gather(1, order)


def precision_at_k(ranked: Tensor, target: Tensor, k: int) -> Tensor:
    """|Z_k ∩ Y| / k: (B,). 0 for an example without targets."""
    hit, _ = _hits(ranked, target, k)
    return hit.sum(dim=1) / k


def recall_at_k(ranked: Tensor, target: Tensor, k: int) -> Tensor:
    """|Z_k ∩ Y| / |Y|: (B,). NaN for an example without targets."""
    hit, num_targets = _hits(ranked, target, k)
    return hit.sum(dim=1) / num_targets


def average_precision_at_k(
    ranked: Tensor, target: Tensor, k: int, *, normalise: str = "possible"
) -> Tensor:
    """Precision@k' averaged over the positions k' <= k that are hits: (B,).

    `normalise="possible"` divides the sum by min(|Y|, k), Kaggle's definition, 1 only for a
    perfect list; `"hits"` divides by the number of hits, the paper's literal words, under
    which one hit at rank 1 of five is perfect too.

    >>> average_precision_at_k(torch.tensor([[7, 3, 9]]), torch.tensor([[7, 9]]), 3)
    tensor([0.8333])
    """
    hit, num_targets = _hits(ranked, target, k)
    position = torch.arange(1, hit.shape[1] + 1, device=hit.device)
    total = (hit * hit.cumsum(dim=1) / position).sum(dim=1)
    if normalise == "possible":
        return total / num_targets.clamp(max=k)
    if normalise == "hits":
        return total / hit.sum(dim=1).clamp(min=1) + 0 / num_targets.clamp(max=1)
    raise UsageError(f"normalise must be 'possible' or 'hits', got {normalise!r}.")


def ndcg_at_k(ranked: Tensor, target: Tensor, k: int) -> Tensor:
    """Discounted gain, 1 / log2(rank + 1) for every hit, over that of a perfect list: (B,).

    NaN for an example without targets.
    """
    hit, num_targets = _hits(ranked, target, k)
    gain = 1 / torch.log2(torch.arange(2, k + 2, device=hit.device).float())
    ideal = torch.cat([gain.new_zeros(1), gain.cumsum(0)])[num_targets.clamp(max=k).long()]
    return (hit * gain[: hit.shape[1]]).sum(dim=1) / ideal


def reciprocal_rank(ranked: Tensor, target: Tensor) -> Tensor:
    """1 / rank of the first hit, 0 without one: (B,). NaN for an example without targets."""
    hit, num_targets = _hits(ranked, target, ranked.shape[-1])
    position = torch.arange(1, hit.shape[1] + 1, device=hit.device)
    return (hit / position).amax(dim=1) + 0 / num_targets.clamp(max=1)


def mean_precision_at_k(ranked: Tensor, target: Tensor, k: int) -> float:
    """Mean of `precision_at_k` over the examples that have targets."""
    return _mean(precision_at_k(ranked, target, k), target)


def mean_average_precision_at_k(
    ranked: Tensor, target: Tensor, k: int, *, normalise: str = "possible"
) -> float:
    """MAP@k: mean of `average_precision_at_k` over the examples that have targets."""
    return _mean(average_precision_at_k(ranked, target, k, normalise=normalise), target)


def _mean(value: Tensor, target: Tensor) -> float:
    judged = (target >= 0).any(dim=1)
    if not bool(judged.any()):
        raise UsageError("no example has a target: there is nothing to average.")
    return float(value[judged].double().mean())


def _hits(ranked: Tensor, target: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(B, min(N, k)) 1.0 where a list first names a true id, and (B,) distinct true ids."""
    check_positive("k", k)
    check_shape({}, ranked=(ranked, "B N"), target=(target, "B L"))
    ranked, target = check_integer("ranked", ranked)[:, :k], check_integer("target", target)
    if ranked.shape[1] < k:
        raise UsageError(
            f"k is {k}, but ranked holds only {ranked.shape[1]} ids for each example. "
            "Rank at least k classes."
        )
    # ids once per row, on both sides
    ranked = ranked.masked_fill(~first_occurrences(ranked), -1)
    hit = ranked >= 0
    found = torch.zeros_like(hit)
    for column in target.unbind(dim=1):  # L is small; a (B, k, L) block need not be
        found |= ranked == column[:, None]
    num_targets = (first_occurrences(target) & (target >= 0)).sum(dim=1)
    return (hit & found).float(), num_targets.float()
