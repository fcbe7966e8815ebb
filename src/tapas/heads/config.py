"""The settings of a TAPAS head, checked once and never changed."""

from dataclasses import dataclass, field
from operator import index

from tapas.errors import UsageError
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
        try:  # a plain int: torch.load refuses numpy's in a checkpoint
            object.__setattr__(self, "seed", index(self.seed))
        except TypeError:
            raise UsageError(f"seed must be a whole number, got {self.seed!r}.") from None
        for name, known in (
            ("correction", ("proposal", "none")),
            ("reduction", ("mean", "sum", "none")),
        ):
            if getattr(self, name) not in known:
                raise UsageError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}."
                )
