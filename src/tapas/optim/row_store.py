"""What optimizers need of a table: where its rows are, and how to move them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.optim.row_updates import RowUpdate


class RowGradients(NamedTuple):
    """Gradients of N rows and their biases; an id may repeat until they are summed."""

    ids: Tensor  # (N,) int64
    weight: Tensor  # (N, D) float32
    bias: Tensor  # (N,) float32

    def times(self, factor: float) -> "RowGradients":
        if factor == 1.0:
            return self
        return RowGradients(self.ids, self.weight * factor, self.bias * factor)

    def is_finite(self) -> bool:
        # a finite sum proves it; only a bad one pays for more
        total = float(self.weight.sum()) + float(self.bias.sum())
        return math.isfinite(total) or bool(
            self.weight.isfinite().all() & self.bias.isfinite().all()
        )


class RowStore(ABC):
    """Rows that can be moved, wherever they are."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Rows that are kept in this process."""

    @property
    @abstractmethod
    def has_bias(self) -> bool:
        """Whether there are biases; where not they are 0 and have no gradient."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the rows are read, and where queries are expected."""

    @property
    @abstractmethod
    def row_optimizer(self) -> RowUpdate | None:
        """What moves rows in `backward`; None where they wait for an optimizer's step."""

    @abstractmethod
    def move_rows(
        self, update: RowUpdate, gradients: RowGradients, state: dict[str, Tensor] | None
    ) -> None:
        """One step by `update` of the rows named, whose gradients are finite.

        `state` is that of an optimizer, which is filled in its first step; with None it is the
        table's own, of the fused option. Gradients of a repeated id are summed.
        """

    def check_training(self) -> None:  # noqa: B027  (most have nothing to refuse)
        """An error if the rows cannot be trained in this process."""

    def check_update(self, update: RowUpdate) -> None:  # noqa: B027
        """An error if the rows cannot be moved by `update`."""

    def row_state_shapes(self, update: RowUpdate) -> dict[str, tuple[int, ...]]:
        """What an optimizer's state of these rows holds after its first step, by name."""
        return {}

    def row_state_marks(self) -> dict[str, Tensor]:
        """Entries of such a state that say whose rows they are, not what was learned."""
        return {}

    def check_row_state(self, update: RowUpdate, state: Mapping[str, Tensor]) -> None:
        """An error if `state`, an optimizer's, is not what `update` remembers of these rows."""
        found = {name: tuple(getattr(part, "shape", ())) for name, part in state.items()}
        if state and found != (wanted := self.row_state_shapes(update)):
            raise UsageError(
                f"this state is not that of a {update.name} for these rows: it has {found}, "
                f"expected {wanted}."
            )
        for name, part in state.items():
            whole = name in ("step", "layout")
            if not isinstance(part, Tensor) or part.is_meta or part.is_floating_point() == whole:
                raise UsageError(
                    f"{name} of an optimizer's state of rows is no such tensor: {part!r}."
                )
            if name == "step" and int(part) < 0:
                raise UsageError(f"an optimizer's state of rows has made {int(part)} steps.")

    def sum_over_ranks(self, value: float, formula: Callable[[], str]) -> float:
        """The sum of `value` over all ranks, whose optimizers must have the same `formula`."""
        return value
