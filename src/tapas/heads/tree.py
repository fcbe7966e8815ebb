"""`TreeHead`, the base class of hierarchical softmaxes over trees or clusters of classes.

    p(y | q) = p(first choice of y | q) * p(second choice of y | q, first) * ...

Each factor is normalised over a few choices, and so their product is normalised over all classes:
log-probabilities are exact and need only the choices on the path to y. Rows belong to choices, not
always to classes, and the head creates the tables that hold them.

Several targets of one example are independent: its loss is sum_l w_l * -log p(y_l | q).
"""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.errors import UsageError
from tapas.heads.base import Head, LossOptions, loss_options
from tapas.heads.batch import Batch
from tapas.heads.facts import BuildContext
from tapas.optim.row_updates import RowUpdate
from tapas.rng import stream
from tapas.shapes import check_device, check_ids, check_integer, check_positive, check_query
from tapas.tables import LocalTable
from tapas.torch_modes import in_float32

Counts: TypeAlias = Tensor | NDArray[np.generic]
MOST_COUNTED = 2**62  # the sum of all counts, so that int64 does not overflow


class TreeOptions(LossOptions, total=False):
    """Keyword arguments of every `TreeHead`."""

    row_optimizer: RowUpdate | None
    bias: bool
    device: torch.device | str | None


class TreeHead(Head):
    """A head built from class counts; the score of a class is its log-probability.

    Args:
        row_optimizer, device: of the tables that the head creates; see `LocalTable`.
        bias: whether there are biases; their initial values come from the counts.
        reduction, ignore_index, seed: as for every head.

    A saved state fits only a head that was built from the same counts and options; loading it
    into another is a UsageError.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"counts"})

    def __init__(self, num_classes: int, dim: int, **options: Unpack[TreeOptions]):
        super().__init__(num_classes, dim, **loss_options(self, options, TreeOptions))
        self._row_optimizer, self._bias = options.get("row_optimizer"), options.get("bias", True)
        if not isinstance(self._bias, bool):
            raise UsageError(
                f"bias of a {type(self).__name__} must be True (initial values from the counts) "
                f"or False, got {type(self._bias).__name__}."
            )
        self._device = check_device("device", options.get("device"))

    def _table(self, name: str, mass: NDArray[Any], dim: int) -> LocalTable:
        """A table with one row for each entry of `mass`; its biases start at log(mass)."""
        return LocalTable(
            len(mass),
            dim,
            row_optimizer=self._row_optimizer,
            bias=torch.from_numpy(np.log(mass)) if self._bias else False,
            seed=stream(self.seed, name).initial_seed(),
            device=self._device,
        )

    def _register_layout(self, **arrays: NDArray[np.int64]) -> None:
        """Buffers that follow from the counts, and are therefore not saved."""
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(array).to(self._device), persistent=False)

    @classmethod
    def arguments(cls, options: Mapping[str, Any], context: BuildContext) -> dict[str, Any]:
        given = super().arguments(options, context) | {"row_optimizer": context.row_optimizer}
        del given["num_classes"]  # known from counts
        return given

    @abstractmethod
    def neg_log_prob(self, query: Tensor, target: Tensor) -> Tensor:
        """(B, L) -log p of `target` (B, L) given `query` (B, D); 0 for padding, -1.

        Differentiable: `backward` leaves gradients for the rows on the paths to the targets.
        """

    @abstractmethod
    def _topk(self, query: Tensor, k: int, exclude: Tensor) -> tuple[Tensor, Tensor]:
        """`topk` for queries (B, D) and `exclude` (B, E) that have been checked."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the rows."""

    @abstractmethod
    def layout(self) -> Tensor:
        """Which class is where; states of heads with different layouts are incompatible."""

    def _loss(self, batch: Batch, context: Tensor | None) -> Tensor:
        cost = self.neg_log_prob(batch.query, batch.target)
        if batch.weight is not None:
            cost = cost * batch.weight
        return batch.reduce(cost.sum(dim=1), self.reduction, len(batch.query))

    @in_float32
    @torch.no_grad()
    def log_prob(self, query: Tensor, ids: Tensor) -> Tensor:
        flat = check_query(query, self.dim)
        wanted = check_ids("ids", self._flat("ids", ids, query), self.num_classes)
        if not wanted.numel():
            return flat.new_zeros(ids.shape)
        return -self.neg_log_prob(flat, wanted.to(flat.device)).view(ids.shape)

    @in_float32
    @torch.no_grad()
    def topk(
        self, query: Tensor, k: int, *, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        flat = check_query(query, self.dim)
        if check_positive("k", k) > self.num_classes:
            raise UsageError(f"k is {k}, but there are only {self.num_classes} classes.")
        banned = torch.empty(len(flat), 0, dtype=torch.int64, device=flat.device)
        if exclude is not None:
            banned = check_integer("exclude", self._flat("exclude", exclude, query))
            check_ids("exclude", banned.clamp(min=0), self.num_classes)
        score, ids = self._topk(flat, k, banned.to(flat.device))
        return score.view(*query.shape[:-1], k), ids.view(*query.shape[:-1], k)

    def state_numbers(self) -> dict[str, int | float]:
        return {**super().state_numbers(), "layout": self._layout_checksum()}

    def load_state_numbers(self, numbers: dict[str, Any]) -> None:
        if numbers["layout"] != self._layout_checksum():
            raise UsageError(
                "this state is from a head with other counts or options: its rows would belong to "
                "other classes. Build the head from the counts and options it was saved with."
            )
        super().load_state_numbers(numbers)

    def _layout_checksum(self) -> int:
        data = self.layout().cpu().numpy().tobytes()
        return int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "little")


def check_counts(counts: Counts) -> NDArray[np.int64]:
    """`counts` (C,) as int64, after checks: integers of at least 0, for at least two classes."""
    given: Any = counts.detach().cpu().numpy() if isinstance(counts, Tensor) else counts
    if not isinstance(given, np.ndarray) or given.ndim != 1 or given.dtype.kind not in "iuf":
        what = f"shape {given.shape}" if isinstance(given, np.ndarray) else type(given).__name__
        raise UsageError(
            f"counts must be a tensor or array of numbers, one for each class, got {what}."
        )
    if len(given) < 2:
        raise UsageError(f"counts has {len(given)} entries; expected at least 2 classes.")
    with np.errstate(invalid="ignore"):  # inf % 1
        bad = np.flatnonzero(~((given >= 0) & (given <= MOST_COUNTED) & (given % 1 == 0)))
    if len(bad):
        raise UsageError(
            f"counts[{bad[0]}] is {given[bad[0]]}; expected integers of at least 0, how often "
            "each class was seen."
        )
    if float(given.sum(dtype=np.float64)) > MOST_COUNTED:
        raise UsageError(f"counts sum to {given.sum(dtype=np.float64):g}, above 2^62. Scale them.")
    integers: NDArray[np.int64] = given.astype(np.int64)
    return integers
