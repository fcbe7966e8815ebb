"""`Selection`, the interface of second-pass rules, and `SelectionInput`, what a rule gets."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.native import PoolRows

Select = TypeVar("Select", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class SelectionInput:
    """One pool, or the classes of it that one shard holds, with the queries that score it.

    `rows(start, stop)` reads weights (stop - start, D) and biases (stop - start,) of that
    range of the pool as float32, so that a rule can work in chunks and never needs a
    (B, pool) matrix.
    """

    ids: Tensor  # (P,) int64, ascending
    log_q: Tensor  # (P,) log expected counts of the first pass
    rows: Callable[[int, int], tuple[Tensor, Tensor]]
    query: Tensor  # (A, D) float32, the queries that score the pool
    target: Tensor  # (A, L) targets of these queries; negative is padding
    complete: bool  # whether `query` has all queries of the batch
    temperature: float
    noise: Tensor  # (P,) uniform in (0, 1], a rule's only randomness; (0,) if not `random`
    native: PoolRows | None = None  # the same rows, if the native kernels can read them

    def __len__(self) -> int:
        return self.ids.shape[0]


class Selection(ABC):
    """A rule for the second pass: which `keep` classes of the pool are kept, with which weights."""

    random: ClassVar[bool] = True  # False: the rule does not use `noise`, and none is drawn
    score_queries: int | None = None  # how many queries of a batch score the pool; None is all

    @abstractmethod
    def select(self, given: SelectionInput, keep: int) -> tuple[Tensor, Tensor]:
        """Ascending positions in the pool, (keep,) int64, and the log weight of each, (keep,).

        A kept class counts exp(log weight) times in the loss: its log_q is lowered by the log
        weight. Called under `no_grad`, and only if keep < len(given).
        """


_builtin: set[Callable[..., object]] = set()


def builtin(select: Select) -> Select:
    """Decorator for the `select` of this package: tests check what it returns, not every step."""
    _builtin.add(select)
    return select


def check_selected(
    rule: Selection, positions: Tensor, log_weight: Tensor, keep: int, size: int
) -> tuple[Tensor, Tensor]:
    """Check what `rule.select` returned: the loss cannot find targets in unsorted positions."""
    if type(rule).select in _builtin:
        return positions, log_weight
    fits = positions.shape == log_weight.shape == (keep,) and positions.dtype == torch.int64
    if fits and keep > 1:
        fits = bool((positions[1:] > positions[:-1]).all())
    if not fits or int(positions[0]) < 0 or int(positions[-1]) >= size:
        raise UsageError(
            f"{rule!r} must select {keep} distinct positions below {size}, ascending, as int64, "
            f"and as many log weights; it returned shapes {tuple(positions.shape)} and "
            f"{tuple(log_weight.shape)}, first positions {positions.reshape(-1)[:3].tolist()}."
        )
    return positions, log_weight.float()


def largest(score: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Ascending positions of the `keep` largest of `score` (P,), and the largest value left out.

    Ties go to the lower position, which is the lower id. A NaN (a diverged row) counts as the
    largest, so that it reaches the loss and is noticed. keep must be below P.
    """
    value, position = score.topk(keep + 1)
    edge, left_out = value[keep - 1 :].tolist()
    if edge > left_out:
        return position[:keep].sort().values, value[keep]
    # torch.topk returns any of the equal scores; comparisons with NaN are false and end here, too
    score = score.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    last = score.topk(keep).values[-1]
    kept = score > last
    tied = (score == last).nonzero()[:, 0]
    kept[tied[: keep - int(kept.sum())]] = True
    return kept.nonzero()[:, 0], score[~kept].amax()
