"""The paper's proposal: class frequencies raised to a power, with a floor.

    Q(c)  ∝  max(f_c^alpha, beta)  =  beta + max(f_c^alpha - beta, 0)

The right-hand side is a uniform distribution over all classes plus an alias table over the
classes above the floor, so that a billion classes of which a million were seen need a million
entries.
"""

import math
from collections.abc import Sequence
from typing import TypeGuard, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.candidates import index_of
from tapas.errors import DataError, UsageError
from tapas.proposals.floor_and_head import FloorAndHeadProposal, floor_and_head, log_drawn
from tapas.shapes import check_ids, check_positive, number

ALPHA = 0.75  # the exponent of word2vec
Counts = Tensor | NDArray[np.generic] | Sequence[float]
SparseCounts = Counts | tuple[Counts, Counts]  # (C,), or (ids, counts)


class Squashed(FloorAndHeadProposal):
    """Draws class c in proportion to max(f_c^alpha, beta), where f_c is its frequency.

    Args:
        counts: (C,) how often each class was seen; or a tuple `(ids, counts)` of the classes
            that were seen, together with `num_classes`.
        alpha: exponent from 0 (uniform) to 1 (the frequencies). The default, 0.75, is that of
            word2vec.
        beta: floor of f^alpha. By default the value of a class seen once (or of the least count,
            if that is below 1), so that unseen classes are drawn like the rarest seen ones.
        num_classes: C, needed for sparse `(ids, counts)`.

    Memory is O(classes above the floor), a draw takes O(1).
    """

    def __init__(
        self,
        counts: SparseCounts,
        *,
        alpha: float = ALPHA,
        beta: float | None = None,
        num_classes: int | None = None,
    ):
        if not 0 <= number(alpha) <= 1:
            raise UsageError(f"alpha must be between 0 and 1, got {alpha!r}.")
        if beta is not None and not (math.isfinite(number(beta)) and beta > 0):
            raise UsageError(
                f"beta must be a finite number above 0, got {beta!r}: at 0 an unseen class could "
                "never be drawn. Leave it out for the value of a class seen once."
            )
        ids, seen, self.num_classes = _sparse_counts(counts, num_classes)
        total = _sum(seen)
        if total == 0:
            raise DataError(
                f"all counts are 0: no class was ever seen. Use Uniform({self.num_classes})."
            )
        self.alpha = float(alpha)
        once = seen.min().clamp(max=1.0)  # the least count, if that is a fraction below 1
        self.beta = float(beta) if beta is not None else float((once / total) ** alpha)
        value = (seen / total) ** alpha
        above = value > self.beta
        if beta is None:
            above &= seen > once  # a power may be rounded to just above the floor
        if alpha == 0:
            above &= False  # f^0 is 1, also for an unseen class
        self.head_ids, value = ids[above], value[above]
        floor_mass = self.beta * self.num_classes
        norm = floor_mass + _sum(value - self.beta)
        if not (self.beta > 0 and math.isfinite(norm)):
            raise DataError(
                f"counts from {float(seen.min()):g} to {float(seen.max()):g} with beta "
                f"{self.beta:g} cannot be normalised in float64. Scale them, or clip them."
            )
        self._parts = floor_and_head(
            self.num_classes,
            self.head_ids,
            value - self.beta,
            floor_share=floor_mass / norm,
            floor_log_prob=math.log(self.beta) - math.log(norm),
            head_log_prob=value.log() - math.log(norm),
        )

    def log_not_drawn(self, ids: Tensor) -> Tensor:
        return self._of_class(ids, self._parts.not_drawn, self._parts.floor_not_drawn)

    def log_prob(self, ids: Tensor) -> Tensor:
        ids = check_ids("ids", ids, self.num_classes)
        not_drawn = self._of_class(ids, self._parts.not_drawn, self._parts.floor_not_drawn)
        return log_drawn(not_drawn)

    def _of_class(self, ids: Tensor, of_head: Tensor, of_floor: float) -> Tensor:
        """`of_head` (H,) for classes of the head, else `of_floor`; in the shape of `ids`."""
        if not len(of_head):
            return torch.full_like(ids, of_floor, dtype=torch.float64)
        position, found = index_of(self.head_ids, ids)
        return torch.where(found, of_head[position], of_head.new_full((), of_floor))

    def __repr__(self) -> str:
        return (
            f"Squashed({self.num_classes} classes, {len(self.head_ids)} above the floor, "
            f"alpha={self.alpha:g}, beta={self.beta:.3g})"
        )


def is_sparse(counts: object) -> TypeGuard[tuple[Counts, Counts]]:
    """Whether `counts` is a tuple `(ids, counts)`.

    >>> is_sparse(([4, 7], [1, 2])), is_sparse((1, 2))
    (True, False)
    """
    return isinstance(counts, tuple) and len(counts) == 2 and not isinstance(counts[0], int | float)


def _sparse_counts(counts: SparseCounts, num_classes: int | None) -> tuple[Tensor, Tensor, int]:
    """Ascending ids of the classes seen, their counts as float64, and the number of classes."""
    if is_sparse(counts):
        if num_classes is None:
            raise UsageError("sparse counts (ids, counts) need num_classes=...")
        num_classes = check_positive("num_classes", num_classes)
        ids, seen = torch.as_tensor(counts[0]).cpu(), _check_counts(counts[1])
        ids = check_ids("count ids", ids, num_classes)
        if ids.shape != seen.shape:
            raise UsageError(
                f"sparse counts need one count for each id, got {ids.shape[0]} ids and "
                f"{seen.shape[0]} counts."
            )
        ids, order = ids.sort()
        repeated = (ids[1:] == ids[:-1]).nonzero()
        if len(repeated):
            raise DataError(f"class {int(ids[repeated[0]])} has two counts; sum them first.")
        seen = seen[order]
    else:
        seen = _check_counts(cast(Counts, counts))
        if num_classes not in (None, seen.shape[0]):
            raise UsageError(
                f"num_classes is {num_classes} but counts has {seen.shape[0]} entries. Leave "
                "num_classes out, or pass sparse counts (ids, counts)."
            )
        num_classes = check_positive("num_classes", seen.shape[0])
        ids = torch.arange(num_classes, device="cpu")
    positive = seen > 0
    return ids[positive], seen[positive], num_classes


def _check_counts(counts: Counts) -> Tensor:
    try:
        seen = torch.as_tensor(counts, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(
            f"counts must be numbers, one for each class, or a tuple (ids, counts), got "
            f"{type(counts).__name__}."
        ) from None
    if seen.dim() != 1:
        raise UsageError(f"counts has shape {tuple(seen.shape)}; expected (C,).")
    bad = (~(seen.isfinite() & (seen >= 0))).nonzero()
    if len(bad):
        first = int(bad[0])
        raise DataError(
            f"counts[{first}] is {float(seen[first]):g}; expected a finite number of at least 0."
        )
    return seen


def _sum(values: Tensor) -> float:
    """Sum in one thread: the last digit of torch's sum depends on the number of threads."""
    with np.errstate(over="ignore"):
        return float(values.numpy().sum())
