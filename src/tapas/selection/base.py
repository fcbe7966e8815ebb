"""What a second-pass rule sees and what it answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from tapas.errors import UsageError

Select = TypeVar("Select", bound=Callable[..., object])


class NativeRows(NamedTuple):
    """Rows of a pool where native kernels can read them."""

    weight: Tensor  # (N, D) all rows of the table or shard, float32 or bfloat16
    positions: Tensor  # (P,) where the pool's rows are among them
    bias: Tensor  # (P,) float32


@dataclass(frozen=True, slots=True)
class SelectionInput:
    """One pool (or one shard's part of it) as seen where its rows live.

    `rows(start, stop)` reads weights (stop - start, D) and biases (stop - start,) of that
    range of the pool as float32, so that a rule works in chunks and no B x pool
    matrix ever exists.
    """

    ids: Tensor  # (P,) int64, rising
    log_q: Tensor  # (P,) log expected counts of the first pass
    rows: Callable[[int, int], tuple[Tensor, Tensor]]
    query: Tensor  # (A, D) float32, the queries that score
    target: Tensor  # (A, L) the targets of those queries; negative is padding
    complete: bool  # whether every query of the batch is among them
    temperature: float
    noise: Tensor  # (P,) uniform in (0, 1]: all the randomness a rule may use; (0,) if it is not
    native: NativeRows | None = None  # the same rows, where native kernels can read them

    def __len__(self) -> int:
        return self.ids.shape[0]


class Selection(ABC):
    """A rule for the second pass: which `keep` of the pool stay, and at what weight."""

    random: ClassVar[bool] = True  # False: it decides without `noise`, which is then not drawn
    score_queries: int | None = None  # score with this many queries of a batch; None is all

    @abstractmethod
    def select(self, given: SelectionInput, keep: int) -> tuple[Tensor, Tensor]:
        """Positions in the pool (keep,), rising, and the log weight of each, (keep,).

        A kept class counts exp(log weight) times in the loss: log_q is lowered by it.
        Called inside no_grad, and only when keep < len(given).
        """


_builtin: set[Callable[..., object]] = set()


def builtin(select: Select) -> Select:
    """Marks a `select` of this package, whose answers the tests check and not every step."""
    _builtin.add(select)
    return select


def check_selected(
    rule: Selection, positions: Tensor, log_weight: Tensor, keep: int, size: int
) -> tuple[Tensor, Tensor]:
    """What a rule answered, or an error: unsorted positions would hide targets from the loss."""
    if type(rule).select in _builtin:
        return positions, log_weight
    fits = positions.shape == log_weight.shape == (keep,) and positions.dtype == torch.int64
    if fits and keep > 1:
        fits = bool((positions[1:] > positions[:-1]).all())
    if not fits or int(positions[0]) < 0 or int(positions[-1]) >= size:
        raise UsageError(
            f"{rule!r} must select {keep} distinct positions below {size}, rising, as int64, and "
            f"as many log weights; it gave shapes {tuple(positions.shape)} and "
            f"{tuple(log_weight.shape)}, from {positions.reshape(-1)[:3].tolist()} on."
        )
    return positions, log_weight.float()


def largest(score: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Positions of the `keep` largest of `score` (P,), rising, and the largest value left out.

    Ties go to the lower position, which is the lower id. A NaN (a diverged row) counts as the
    largest, so that it shows in the loss instead of hiding. Needs keep < P.
    """
    value, place = score.topk(keep + 1)
    edge, left_out = value[keep - 1 :].tolist()
    if edge > left_out:
        return place[:keep].sort().values, value[keep]
    # torch.topk takes any of the equal scores; a NaN compares as false and lands here, too
    score = score.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    last = score.topk(keep).values[-1]
    kept = score > last
    tied = (score == last).nonzero()[:, 0]
    kept[tied[: keep - int(kept.sum())]] = True
    return kept.nonzero()[:, 0], score[~kept].amax()
