"""`Batch`: queries and targets checked, flattened, and without examples that are all padding."""

from dataclasses import dataclass

import torch
from torch import Tensor

import tapas.native as native
from tapas.candidates import first_occurrences
from tapas.errors import UsageError
from tapas.heads.multi_hot import refuse_multi_hot
from tapas.shapes import all_finite, check_ids, check_integer, check_query, check_tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples with at least one target."""

    query: Tensor  # (B, D) float32
    target: Tensor  # (B, L) int64; -1 is padding
    weight: Tensor | None  # (B, L); None is 1 for a single target
    counted: Tensor | None  # (B, L) False for padding and repeats; None is all True
    positions: Tensor | None  # (B,) of these examples in the input; None is all, in order
    shape: torch.Size  # leading shape of the input queries

    def context_of(self, context: Tensor | None) -> Tensor | None:
        """(B,) previous classes of these examples; `context` has one for each input query."""
        flat = flat_context(context, self.shape, self.query.device)
        return flat if flat is None or self.positions is None else flat[self.positions]

    def first(self, number: int) -> "Batch":
        """The first `number` examples."""
        query, target = self.query[:number], self.target[:number]
        weight = None if self.weight is None else self.weight[:number]
        counted = None if self.counted is None else self.counted[:number]
        return Batch(query, target, weight, counted, None, query.shape[:1])

    def factor(self, reduction: str, mean_size: float) -> float | None:
        """The reduced loss over the sum of all costs; None if it is not a multiple of that."""
        if reduction == "none" or self.weight is not None or self.target.shape[1] != 1:
            return None
        return 1.0 if reduction == "sum" or not mean_size else 1.0 / mean_size

    def weighted(self, cost: Tensor) -> Tensor:
        """(B,) the loss of each example from the `cost` (B, L) of its targets."""
        if cost.shape[1] == 1:
            single = cost.view(-1)
            return single if self.weight is None else single * self.weight[:, 0]
        return (cost if self.weight is None else cost * self.weight).sum(dim=1)

    def reduce(self, loss: Tensor, reduction: str, mean_size: float) -> Tensor:
        """Mean or sum of `loss` (B,), or `loss` in the leading shape of the input, 0 for padding.

        `mean_size` is the mean of B over the ranks. The "mean" of a rank is its sum divided by
        that, so that the average over ranks is the mean over all examples.
        """
        if reduction == "mean":
            return loss.mean() if mean_size == len(loss) else loss.sum() / mean_size
        if reduction == "sum":
            return loss.sum()
        if self.positions is None:
            return loss.view(self.shape)
        return (
            loss.new_zeros(self.shape.numel()).index_copy(0, self.positions, loss).view(self.shape)
        )


def prepare(
    query: Tensor,
    target: Tensor,
    weight: Tensor | None,
    *,
    num_classes: int,
    dim: int,
    ignore_index: int,
    may_be_empty: bool = False,
) -> Batch:
    """Check and flatten `query` (..., D) with `target` (...,) or (..., L).

    Without `weight` the targets of an example have equal weights that sum to 1; a given `weight`
    is not normalised. Raises UsageError for an empty batch and for one that is all padding,
    unless it `may_be_empty`, as on one of several ranks.
    """
    if weight is None and _is_plain(query, target, num_classes, dim, ignore_index):
        return Batch(query, target.view(-1, 1), None, None, None, query.shape[:1])
    check_tensor("query", query)
    check_tensor("target", target)
    if weight is not None:
        check_tensor("target_weight", weight)
    shape = query.shape[:-1]
    if target.shape == shape:
        target = target.unsqueeze(-1)
        weight = weight.unsqueeze(-1) if weight is not None else None
    elif target.dim() == query.dim() and target.shape[:-1] == shape:
        pass
    else:
        want = ", ".join(str(size) for size in shape)
        raise UsageError(
            f"target has shape {tuple(target.shape)}; expected ({want}) or ({want}, L) "
            f"for a query of shape {tuple(query.shape)}."
        )
    if not shape.numel() and may_be_empty and target.shape[-1]:
        return _nothing(check_query(query, dim), target.shape[-1], weight, shape)
    if not shape.numel():
        raise UsageError(
            f"the batch is empty: query has shape {tuple(query.shape)}. Skip such a batch."
        )
    if not target.numel():
        raise UsageError(
            f"target has shape {tuple(target.shape)}: no example has a target. Skip such a batch."
        )
    flat = check_query(query, dim)
    refuse_multi_hot(target, num_classes)
    target = check_integer("target", target).to(flat.device)
    ids = target.reshape(len(flat), -1).contiguous()
    low, high = ids.aminmax()
    if int(low) >= 0 > ignore_index and int(high) < num_classes:  # no padding, the usual case
        weights = _weights(weight, target, None)
        counted = first_occurrences(ids) if ids.shape[1] > 1 else None
        return Batch(flat, ids, weights, counted, None, shape)
    padding = ids == ignore_index
    ids = ids.masked_fill(padding, 0)
    check_ids("target", ids, num_classes, hint=f" Padding is ignore_index={ignore_index}.")
    weights = _weights(weight, target, padding)
    positions = (~padding.all(dim=1)).nonzero()[:, 0]
    if not len(positions) and not may_be_empty:
        raise UsageError(
            f"every target is ignore_index ({ignore_index}): the batch has nothing to learn from. "
            "Skip such a batch, or check the padding value."
        )
    ids = ids.masked_fill(padding, -1)
    if len(positions) == len(flat):
        return Batch(flat, ids, weights, (first_occurrences(ids) & (ids >= 0)), None, shape)
    flat, ids = flat[positions], ids[positions]
    weights = weights[positions] if weights is not None else None
    counted = (first_occurrences(ids) & (ids >= 0)) if ids.shape[1] > 1 else None
    return Batch(flat, ids, weights, counted, positions, shape)


def _is_plain(query: Tensor, target: Tensor, num_classes: int, dim: int, ignore_index: int) -> bool:
    """Whether queries (B, D) and targets (B,) can be used as they are: the usual case, quickly."""
    if not (
        type(query) is Tensor
        and type(target) is Tensor
        and query.dtype is torch.float32
        and target.dtype is torch.int64
        and target.dim() == 1
        and query.shape == (target.shape[0], dim)
        and target.shape[0]
        and query.device == target.device
        and ignore_index < 0
        and target.is_contiguous()
    ):
        return False
    if native.supports(query, target) and query.is_contiguous():
        return native.fits(query, target, num_classes)
    low, high = target.aminmax()
    return bool(low >= 0) and bool(high < num_classes) and all_finite(query)


def check_any_example(size: float) -> None:
    """Raise if no rank has an example; `size` is the mean or total number of them."""
    if not size:
        raise UsageError("no rank has an example in this batch. Skip it on all of them.")


def flat_context(context: Tensor | None, shape: torch.Size, device: torch.device) -> Tensor | None:
    """`context`, which must have the leading shape of the queries, as (B,) on `device`."""
    if context is None:
        return None
    check_tensor("context", context)
    if context.shape != shape:
        raise UsageError(
            f"context has shape {tuple(context.shape)}; expected {tuple(shape)}, the "
            "previous class of every example."
        )
    return context.reshape(-1).to(device)


def positive_scores(batch: Batch, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, L) scores of the targets, from the rows (C, D) of all classes; of class 0 for padding."""
    target = batch.target.clamp(min=0)
    flat = target.reshape(-1)
    rows = weight.index_select(0, flat).view(*target.shape, weight.shape[1])
    score = (rows * batch.query[:, None]).sum(dim=2)
    return score + bias.index_select(0, flat).view(target.shape)


def _nothing(query: Tensor, num_targets: int, weight: Tensor | None, shape: torch.Size) -> Batch:
    """A batch of no examples, with the fields and widths of one that has some."""
    several = num_targets > 1
    none = torch.empty(0, num_targets, device=query.device)
    return Batch(
        query,
        none.long(),
        none if several or weight is not None else None,
        none.bool() if several else None,
        None,
        shape,
    )


def _weights(weight: Tensor | None, target: Tensor, padding: Tensor | None) -> Tensor | None:
    """(B, L) float32 weights, 0 for padding; None if each example has one target of weight 1."""
    num_targets = target.shape[-1]
    if weight is None:
        if num_targets == 1:
            return None
        if padding is None:
            share = torch.full((1, 1), 1 / num_targets, dtype=torch.float32, device=target.device)
            return share.expand(target.numel() // num_targets, num_targets)
        real = (~padding).float()
        return real / real.sum(dim=1, keepdim=True).clamp(min=1)
    if weight.requires_grad:
        raise UsageError(
            "target_weight requires a gradient, which the head does not give. Detach it, or use "
            "reduction='none' and multiply."
        )
    if weight.shape != target.shape:
        raise UsageError(
            f"target_weight has shape {tuple(weight.shape)}; expected {tuple(target.shape)}, as "
            "target."
        )
    flat = weight.to(target.device, torch.float32).reshape(-1, num_targets)
    if padding is not None:
        flat = flat.masked_fill(padding, 0.0)
    if not bool((flat.isfinite() & (flat >= 0)).all()):
        bad = flat[~(flat.isfinite() & (flat >= 0))][0]
        raise UsageError(
            f"target_weight holds {float(bad):g}; expected finite numbers of at least 0."
        )
    return flat
