"""`RowStore`, the part of a class table that optimizers use, and `RowGradients`."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.optim.row_updates import RowUpdate


class RowGradients(NamedTuple):
    """Gradients of N rows and their biases; ids may repeat."""

    ids: Tensor  # (N,) int64
    weight: Tensor  # (N, D) float32
    bias: Tensor  # (N,) float32

    def times(self, factor: float) -> "RowGradients":
        if factor == 1.0:
            return self
        return RowGradients(self.ids, self.weight * factor, self.bias * factor)

    def is_finite(self) -> bool:
        # a finite sum proves it, and is cheaper than looking at each number
        total = float(self.weight.sum()) + float(self.bias.sum())
        return math.isfinite(total) or bool(
            self.weight.isfinite().all() & self.bias.isfinite().all()
        )


class RowStore(ABC):
    """Class rows that an optimizer can move."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Number of rows stored in this process."""

    @property
    @abstractmethod
    def has_bias(self) -> bool:
        """Whether classes have biases; without them biases read as 0 and get no gradient."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device on which rows are read and queries are expected."""

    @property
    @abstractmethod
    def row_optimizer(self) -> RowUpdate | None:
        """The fused update that moves rows in `backward`; None if an optimizer moves them."""

    @abstractmethod
    def move_rows(
        self, update: RowUpdate, gradients: RowGradients, state: dict[str, Tensor] | None
    ) -> None:
        """Apply one step of `update` to the rows of `gradients`, which must be finite.

        `state` is that of an optimizer and is filled in its first step; None means the table's
        own, for a fused update. Gradients of repeated ids are summed.
        """

    def check_training(self) -> None:  # noqa: B027  (optional)
        """Raise UsageError if the rows cannot be trained in this process."""

    def check_update(self, update: RowUpdate) -> None:  # noqa: B027
        """Raise UsageError if the rows cannot be moved by `update`."""

    def row_state_shapes(self, update: RowUpdate) -> dict[str, tuple[int, ...]]:
        """Names and shapes of an optimizer's state for these rows, after its first step."""
        return {}

    def row_state_layout(self) -> dict[str, Tensor]:
        """Entries of such a state that say which rows it is for."""
        return {}

    def check_row_state(self, update: RowUpdate, state: Mapping[str, Tensor]) -> None:
        """Raise UsageError if `state` is not a state of `update` for these rows."""
        found = {name: tuple(getattr(part, "shape", ())) for name, part in state.items()}
        if state and found != (wanted := self.row_state_shapes(update)):
            raise UsageError(
                f"this state is not that of a {update.name} for these rows: it has {found}, "
                f"expected {wanted}. Load the state that was saved with these rows."
            )
        for name, part in state.items():
            integer = name in ("step", "layout")
            if not isinstance(part, Tensor) or part.is_meta or part.is_floating_point() == integer:
                kind = "integer" if integer else "floating point"
                raise UsageError(
                    f"'{name}' in the optimizer state of rows must be a {kind} tensor with "
                    f"values, got {part!r}."
                )
            if name == "step" and int(part) < 0:
                raise UsageError(
                    f"'step' in the optimizer state of rows must be at least 0, got {int(part)}."
                )

    def sum_over_ranks(self, value: float, formula: Callable[[], str]) -> float:
        """The sum of `value` over all ranks; an error if they differ in `formula`."""
        return value
