"""Ranking metrics of lists of class ids: one value for each example.

`ranked` (..., N) holds predicted ids as `head.topk` returns them, best first, -1 where a list has
no more. `target` holds the true ids, (...,) or (..., L) as the heads take them; negative ids are
padding. An id that is repeated in a list or among the targets counts once. Metrics compare ids,
never scores, so tied scores cannot count as hits: ties are broken before, by id (`head.topk`) or at
random (`rank_classes`).
"""

import torch
from torch import Tensor

from tapas.candidates import first_occurrences
from tapas.errors import UsageError
from tapas.rng import stream
from tapas.shapes import check_integer, check_positive, check_shape, check_tensor


def rank_classes(scores: Tensor, k: int, *, seed: int = 0) -> Tensor:
    """Ids of the k highest `scores` (B, C) of each row, ties broken at random: (B, k).

    A model that gives all classes the same score therefore performs at chance level. Use another
    seed for every batch, such as its number; otherwise all batches break ties in the same way.
    """
    sizes = check_shape({}, scores=(scores, "B C"))
    if check_positive("k", k) > sizes["C"]:
        raise UsageError(f"k is {k}, but there are only {sizes['C']} classes.")
    if bool(scores.isnan().any()):
        raise UsageError("scores contain NaN, which cannot be ranked.")
    shuffle = torch.rand(
        scores.shape, generator=stream(seed, "ties"), dtype=torch.float64, device="cpu"
    )
    shuffle = shuffle.argsort(dim=1).to(scores.device)
    order = scores.gather(1, shuffle).sort(dim=1, descending=True, stable=True).indices[:, :k]
    return shuffle.gather(1, order)


def precision_at_k(ranked: Tensor, target: Tensor, k: int) -> Tensor:
    """|Z_k ∩ Y| / k: (...,). 0 for an example without targets."""
    hit, _ = _hits(ranked, target, k)
    return hit.sum(dim=-1) / k


def recall_at_k(ranked: Tensor, target: Tensor, k: int) -> Tensor:
    """|Z_k ∩ Y| / |Y|: (...,). NaN for an example without targets."""
    hit, num_targets = _hits(ranked, target, k)
    return hit.sum(dim=-1) / num_targets


def average_precision_at_k(
    ranked: Tensor, target: Tensor, k: int, *, normalise: str = "possible"
) -> Tensor:
    """Precision@k' averaged over the positions k' <= k that are hits: (...,).

    `normalise="possible"` divides the sum by min(|Y|, k), as Kaggle does: only a perfect list
    gets 1. `"hits"` divides by the number of hits, as the paper defines it: one hit at rank 1 also
    gets 1, however many targets are missed. NaN for an example without targets.

    >>> average_precision_at_k(torch.tensor([[7, 3, 9]]), torch.tensor([[7, 9]]), 3)
    tensor([0.8333])
    """
    hit, num_targets = _hits(ranked, target, k)
    position = torch.arange(1, hit.shape[-1] + 1, device=hit.device)
    total = (hit * hit.cumsum(dim=-1) / position).sum(dim=-1)
    if normalise == "possible":
        return total / num_targets.clamp(max=k)
    if normalise == "hits":
        return total / hit.sum(dim=-1).clamp(min=1) + 0 / num_targets.clamp(max=1)
    raise UsageError(f"normalise must be 'possible' or 'hits', got {normalise!r}.")


def ndcg_at_k(ranked: Tensor, target: Tensor, k: int) -> Tensor:
    """Sum of 1 / log2(rank + 1) over the hits, divided by that of a perfect list: (...,).

    NaN for an example without targets.
    """
    hit, num_targets = _hits(ranked, target, k)
    gain = 1 / torch.log2(torch.arange(2, k + 2, device=hit.device).float())
    ideal = torch.cat([gain.new_zeros(1), gain.cumsum(0)])[num_targets.clamp(max=k).long()]
    return (hit * gain[: hit.shape[-1]]).sum(dim=-1) / ideal


def reciprocal_rank(ranked: Tensor, target: Tensor) -> Tensor:
    """1 / rank of the first hit, 0 without one: (...,). NaN for an example without targets."""
    hit, num_targets = _hits(ranked, target, None)
    position = torch.arange(1, hit.shape[-1] + 1, device=hit.device)
    return (hit / position).amax(dim=-1) + 0 / num_targets.clamp(max=1)


def mean_precision_at_k(ranked: Tensor, target: Tensor, k: int) -> float:
    """Mean of `precision_at_k` over the examples that have targets."""
    return _mean(precision_at_k(ranked, target, k), target)


def mean_average_precision_at_k(
    ranked: Tensor, target: Tensor, k: int, *, normalise: str = "possible"
) -> float:
    """MAP@k: mean of `average_precision_at_k` over the examples that have targets."""
    return _mean(average_precision_at_k(ranked, target, k, normalise=normalise), target)


def _mean(value: Tensor, target: Tensor) -> float:
    has_target = target >= 0
    if target.shape != value.shape:
        has_target = has_target.any(dim=-1)
    if not bool(has_target.any()):
        raise UsageError("no example has a target: there is nothing to average.")
    return float(value[has_target].double().mean())


def _hits(ranked: Tensor, target: Tensor, k: int | None) -> tuple[Tensor, Tensor]:
    """1.0 at the first mention of each true id, (..., k), and the number of true ids, (...,).

    Of all N that are ranked if k is None.
    """
    check_tensor("ranked", ranked)
    check_tensor("target", target)
    if ranked.dim() < 2:
        raise UsageError(f"ranked has shape {tuple(ranked.shape)}; expected (B, N) or (..., N).")
    k = ranked.shape[-1] if k is None else check_positive("k", k)
    shape = ranked.shape[:-1]
    if target.shape != shape and (target.dim() != ranked.dim() or target.shape[:-1] != shape):
        want = ", ".join(str(size) for size in shape)
        raise UsageError(
            f"target has shape {tuple(target.shape)}; expected ({want}) or ({want}, L) for ranked "
            f"of shape {tuple(ranked.shape)}."
        )
    if ranked.shape[-1] < k:
        raise UsageError(
            f"k is {k}, but ranked has only {ranked.shape[-1]} ids for each example. "
            "Rank at least k classes."
        )
    num_targets_each = 1 if target.shape == shape else target.shape[-1]
    ranked = check_integer("ranked", ranked)[..., :k].reshape(shape.numel(), k)
    target = check_integer("target", target).reshape(shape.numel(), num_targets_each)
    ranked = ranked.masked_fill(~first_occurrences(ranked), -1)
    hit = ranked >= 0
    found = torch.zeros_like(hit)
    for column in target.unbind(dim=1):  # L is small, but a (B, k, L) tensor may not be
        found |= ranked == column[:, None]
    num_targets = (first_occurrences(target) & (target >= 0)).sum(dim=1)
    return (hit & found).float().view(*shape, k), num_targets.float().view(shape)
