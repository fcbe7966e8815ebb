"""The settings of a TAPAS head, checked once and never changed."""

from dataclasses import dataclass, field

from tapas.errors import UsageError
from tapas.heads.base import check_reduction
from tapas.rng import check_seed
from tapas.schedule import Constant, Schedule
from tapas.selection import Priority, Selection
from tapas.shapes import check_positive


@dataclass(frozen=True, kw_only=True, slots=True)
class TapasConfig:
    """Everything about a head but its classes: what to write beside a result."""

    num_samples: int  # n
    presample_factor: int = 8  # r
    temperature: Schedule = field(default_factory=lambda: Constant(1.0))  # tau
    selection: Selection = field(default_factory=Priority)
    correction: str = "proposal"
    reduction: str = "mean"
    ignore_index: int = -100
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_samples", "presample_factor"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))
        object.__setattr__(self, "seed", check_seed(self.seed))
        check_reduction(self.reduction)
        if self.correction not in ("proposal", "none"):
            raise UsageError(f"correction must be one of proposal, none, got {self.correction!r}.")
