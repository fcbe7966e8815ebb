"""Update formulas of the row optimizers: SGD, Adagrad, row-wise Adagrad and lazy Adam.

Each works on a block of rows (N, W), W = D for class rows and W = 1 for biases, after the
gradients of repeated ids have been summed. Weight decay is coupled L2, as in torch.optim.SGD
and Adagrad: it is added to the gradient of the rows in a step, never to biases. Rows without
a gradient do not decay.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.shapes import number


def round_to_bfloat16(block: Tensor, generator: torch.Generator) -> Tensor:
    """float32 `block` rounded stochastically to bfloat16: its expectation is `block`.

    bfloat16 is the upper half of a float32. Adding 16 random bits to the lower half before
    dropping it rounds up with the right probability.
    """
    bits = block.view(torch.int32)
    noise = torch.randint(
        0, 1 << 16, bits.shape, generator=generator, dtype=torch.int32, device="cpu"
    )
    rounded = ((bits + noise.to(bits.device)) & -(1 << 16)).view(torch.float32)
    return torch.where(block.isfinite(), rounded, block).bfloat16()


LARGEST, SMALLEST = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One optimizer state of a row: as wide as the row, or one number."""

    wide: bool
    initial: float = 0.0


@dataclass(kw_only=True)
class RowUpdate(ABC):
    """A formula with its hyperparameters, which may change between steps: `update.lr = 0.05`."""

    name: ClassVar[str]  # of the optimizer in `tapas.optim` that uses it
    lr: float = 0.1
    weight_decay: float = 0.0

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "name" or name not in self.__dataclass_fields__:
            known = [field.name for field in fields(self)]
            raise AttributeError(f"{self.name} has no number '{name}'. It has: {', '.join(known)}.")
        object.__setattr__(self, name, self._check(name, value))

    def _check(self, name: str, value: Any) -> Any:
        """`value` as a float, or an error; all hyperparameters but `eps` may be 0."""
        if isinstance(value, Tensor) and value.numel() == 1:
            value = float(value)
        given = number(value)
        least = SMALLEST if name == "eps" else 0.0
        if not least <= given <= LARGEST:  # rows are computed in float32
            bound = "above 0" if name == "eps" else "of at least 0"
            beyond = ", which float32 cannot hold" if 0 < given < math.inf else ""
            raise UsageError(
                f"{self.name}.{name} must be a finite number {bound}, got {value!r}{beyond}."
            )
        return given

    @abstractmethod
    def state_specs(self) -> dict[str, StateSpec]:
        """The state that it keeps for every row, by name."""

    @abstractmethod
    def apply(self, rows: Tensor, grad: Tensor, state: dict[str, Tensor], step: int) -> None:
        """Update `rows` (N, W) and their `state` in place by gradients `grad` (N, W).

        `step` counts the updates of the table, from 1.
        """

    def native(self, step: int) -> tuple[int, tuple[float, ...]] | None:
        """The number of this formula in native/updates.h and its arguments; None without one."""
        return None

    def __repr__(self) -> str:
        numbers = ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
        return f"{self.name}({numbers})"


@dataclass(kw_only=True, repr=False)
class SGDUpdate(RowUpdate):
    """row -= lr * g"""

    name = "SGD"

    def state_specs(self) -> dict[str, StateSpec]:
        return {}

    def apply(self, rows: Tensor, grad: Tensor, state: dict[str, Tensor], step: int) -> None:
        rows.add_(grad, alpha=-self.lr)

    def native(self, step: int) -> tuple[int, tuple[float, ...]] | None:
        return (0, (self.lr, self.weight_decay)) if type(self) is SGDUpdate else None


@dataclass(kw_only=True, repr=False)
class AdagradUpdate(RowUpdate):
    """sum += g^2;  row -= lr * g / (sqrt(sum) + eps)        (Duchi, Hazan, Singer 2011)"""

    name = "Adagrad"
    initial_sum: float = 1e-6
    eps: float = 1e-10

    def state_specs(self) -> dict[str, StateSpec]:
        return {"sum": StateSpec(wide=True, initial=self.initial_sum)}

    def apply(self, rows: Tensor, grad: Tensor, state: dict[str, Tensor], step: int) -> None:
        total = state["sum"].addcmul_(grad, grad)
        rows.addcdiv_(grad, total.sqrt().add_(self.eps), value=-self.lr)

    def native(self, step: int) -> tuple[int, tuple[float, ...]] | None:
        numbers = (self.lr, self.weight_decay, self.eps)
        return (1, numbers) if type(self) is AdagradUpdate else None


@dataclass(kw_only=True, repr=False)
class RowwiseAdagradUpdate(AdagradUpdate):
    """Adagrad with one sum per row instead of one per weight: sum += mean(g^2)."""

    name = "RowwiseAdagrad"

    def state_specs(self) -> dict[str, StateSpec]:
        return {"sum": StateSpec(wide=False, initial=self.initial_sum)}

    def apply(self, rows: Tensor, grad: Tensor, state: dict[str, Tensor], step: int) -> None:
        norm = torch.linalg.vector_norm(grad, dim=1, keepdim=True)
        total = state["sum"].addcmul_(norm, norm, value=1 / grad.shape[1])
        rows.addcdiv_(grad, total.sqrt().add_(self.eps), value=-self.lr)

    def native(self, step: int) -> tuple[int, tuple[float, ...]] | None:
        numbers = (self.lr, self.weight_decay, self.eps)
        return (2, numbers) if type(self) is RowwiseAdagradUpdate else None


@dataclass(kw_only=True, repr=False)
class LazyAdamUpdate(RowUpdate):
    """Adam that updates moments only for the rows of a step, as torch.optim.SparseAdam.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
    row -= lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)     t: updates of the table
    """

    name = "LazyAdam"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def _check(self, name: str, value: Any) -> Any:
        if name != "betas":
            return super()._check(name, value)
        given = [number(beta) for beta in value] if isinstance(value, Sequence) else []
        if len(given) != 2 or not all(0 <= beta < 1 for beta in given):
            raise UsageError(f"LazyAdam.betas must be two numbers in [0, 1), got {value!r}.")
        return tuple(given)

    def state_specs(self) -> dict[str, StateSpec]:
        return {"mean": StateSpec(wide=True), "square": StateSpec(wide=True)}

    def apply(self, rows: Tensor, grad: Tensor, state: dict[str, Tensor], step: int) -> None:
        mean = state["mean"].lerp_(grad, 1 - self.betas[0])
        square = state["square"].mul_(self.betas[1]).addcmul_(grad, grad, value=1 - self.betas[1])
        length = self.lr * self.correction(step)
        rows.addcdiv_(mean, square.sqrt().add_(self.eps), value=-length)

    def correction(self, step: int) -> float:
        """The factor of the learning rate that corrects for moments starting at 0."""
        return math.sqrt(1 - self.betas[1] ** step) / (1 - self.betas[0] ** step)

    def native(self, step: int) -> tuple[int, tuple[float, ...]] | None:
        if type(self) is not LazyAdamUpdate:
            return None
        beta1, beta2 = self.betas
        moments = (1 - beta1, beta2, 1 - beta2, self.correction(step))
        return 3, (self.lr, self.weight_decay, self.eps, *moments)
