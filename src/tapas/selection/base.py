"""What a second-pass rule sees and what it answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from tapas.errors import UsageError

Pick = TypeVar("Pick", bound=Callable[..., object])


class Stored(NamedTuple):
    """Rows of a pool in this machine's memory."""

    weight: Tensor  # (N, D) all rows of the table or shard, float32 or bfloat16
    places: Tensor  # (P,) where the pool's rows are among them
    bias: Tensor  # (P,) float32


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool (or one shard's part of it) as seen where its rows live.

    `rows(start, stop)` reads weights (stop - start, D) and biases (stop - start,) of that
    stretch of the pool as float32, so that a rule works in chunks and no B x pool
    matrix ever exists.
    """

    ids: Tensor  # (P,) int64, rising
    log_q: Tensor  # (P,) log expected counts of the first pass
    rows: Callable[[int, int], tuple[Tensor, Tensor]]
    query: Tensor  # (A, D) float32, the queries that score
    own: Tensor  # (A, L) the targets of those queries; negative is padding
    complete: bool  # whether every query of the batch is among them
    temperature: float
    noise: Tensor  # (P,) uniform in (0, 1]: all the randomness a rule may use; (0,) if it is not
    stored: "Stored | None" = None  # the same rows, where native kernels can read them

    def __len__(self) -> int:
        return self.ids.shape[0]


class Selection(ABC):
    """A rule for the second pass: which `keep` of the pool stay, and at what weight."""

    random: ClassVar[bool] = True  # False: it decides without `noise`, which is then not drawn
    score_queries: int | None = None  # score with this many queries of a batch; None is all

    @abstractmethod
    def pick(self, view: PoolView, keep: int) -> tuple[Tensor, Tensor]:
        """Places in the pool (keep,), rising, and the log weight of each, (keep,).

        A kept class counts exp(log weight) times in the loss: log_q is lowered by it.
        Called inside no_grad, and only when keep < len(view).
        """


_trusted: set[Callable[..., object]] = set()


def trusted(pick: Pick) -> Pick:
    """Marks a `pick` of this package, whose answers the tests check and not every step."""
    _trusted.add(pick)
    return pick


def check_pick(
    rule: Selection, places: Tensor, log_weight: Tensor, keep: int, size: int
) -> tuple[Tensor, Tensor]:
    """What a rule answered, or an error: unsorted places would hide own targets from the loss."""
    if type(rule).pick in _trusted:
        return places, log_weight
    fits = places.shape == log_weight.shape == (keep,) and places.dtype == torch.int64
    if fits and keep > 1:
        fits = bool((places[1:] > places[:-1]).all())
    if not fits or int(places[0]) < 0 or int(places[-1]) >= size:
        raise UsageError(
            f"{rule!r} must pick {keep} distinct places below {size}, rising, as int64, and as "
            f"many log weights; it gave shapes {tuple(places.shape)} and "
            f"{tuple(log_weight.shape)}, from {places.reshape(-1)[:3].tolist()} on."
        )
    return places, log_weight.float()


def largest(score: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Places of the `keep` largest of `score` (P,), rising, and the largest value left out.

    Ties go to the lower place, which is the lower id. A NaN (a diverged row) counts as the
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
