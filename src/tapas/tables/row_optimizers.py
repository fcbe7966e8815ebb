"""Optimizers that move only the rows a step touched.

Each is a function on a block of touched rows (N, W): the class rows with W = D, the
biases with W = 1. Repeated ids have been summed before. Weight decay is coupled L2 (as
in torch.optim.SGD and Adagrad): it is added to the gradient of the rows a step touches,
when it touches them, and never to biases; an untouched row does not decay.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from tapas.errors import UsageError


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One piece of optimizer state: as wide as its row, or one number for the row."""

    wide: bool
    initial: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RowOptimizer(ABC):
    """Learning rate and weight decay, which all of them have."""

    lr: float = 0.1
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self, "lr", self.lr, above=0)
        _check(self, "weight_decay", self.weight_decay, least=0)

    @abstractmethod
    def state_specs(self) -> dict[str, StateSpec]:
        """What it remembers for every row."""

    @abstractmethod
    def step(self, rows: Tensor, grad: Tensor, state: dict[str, Tensor], num_updates: int) -> None:
        """Move `rows` (N, W) against `grad` (N, W) in place, and `state` with them.

        `num_updates` counts this table's updates from 1.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class SGD(RowOptimizer):
    """row -= lr * g"""

    def state_specs(self) -> dict[str, StateSpec]:
        return {}

    def step(self, rows: Tensor, grad: Tensor, state: dict[str, Tensor], num_updates: int) -> None:
        rows.add_(grad, alpha=-self.lr)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adagrad(RowOptimizer):
    """sum += g^2;  row -= lr * g / (sqrt(sum) + eps)        (Duchi, Hazan, Singer 2011)"""

    initial_sum: float = 1e-6
    eps: float = 1e-10

    def __post_init__(self) -> None:
        RowOptimizer.__post_init__(self)
        _check(self, "initial_sum", self.initial_sum, least=0)
        _check(self, "eps", self.eps, above=0)

    def state_specs(self) -> dict[str, StateSpec]:
        return {"sum": StateSpec(wide=True, initial=self.initial_sum)}

    def step(self, rows: Tensor, grad: Tensor, state: dict[str, Tensor], num_updates: int) -> None:
        total = state["sum"].addcmul_(grad, grad)
        rows.addcdiv_(grad, total.sqrt().add_(self.eps), value=-self.lr)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowwiseAdagrad(Adagrad):
    """Adagrad with one sum for the whole row: sum += mean(g^2). D times less state."""

    def state_specs(self) -> dict[str, StateSpec]:
        return {"sum": StateSpec(wide=False, initial=self.initial_sum)}

    def step(self, rows: Tensor, grad: Tensor, state: dict[str, Tensor], num_updates: int) -> None:
        norm = torch.linalg.vector_norm(grad, dim=1, keepdim=True)
        total = state["sum"].addcmul_(norm, norm, value=1 / grad.shape[1])
        rows.addcdiv_(grad, total.sqrt().add_(self.eps), value=-self.lr)


@dataclass(frozen=True, kw_only=True, slots=True)
class LazyAdam(RowOptimizer):
    """Adam whose moments move only when their row is touched, as torch.optim.SparseAdam.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
    row -= lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)     t: the table's updates
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        RowOptimizer.__post_init__(self)
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise UsageError(f"LazyAdam.{name} must be in [0, 1), got {value!r}.")
        _check(self, "eps", self.eps, above=0)

    def state_specs(self) -> dict[str, StateSpec]:
        return {"mean": StateSpec(wide=True), "square": StateSpec(wide=True)}

    def step(self, rows: Tensor, grad: Tensor, state: dict[str, Tensor], num_updates: int) -> None:
        mean = state["mean"].lerp_(grad, 1 - self.beta1)
        square = state["square"].mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        step = self.lr * self.correction(num_updates)
        rows.addcdiv_(mean, square.sqrt().add_(self.eps), value=-step)

    def correction(self, num_updates: int) -> float:
        """Of the learning rate, for moments that begin at 0."""
        return math.sqrt(1 - self.beta2**num_updates) / (1 - self.beta1**num_updates)


def native_rule(optimizer: RowOptimizer, num_updates: int) -> tuple[int, tuple[float, ...]] | None:
    """What native/updates.h calls the optimizer, and its numbers; None if it is none of these."""
    base = (optimizer.lr, optimizer.weight_decay)
    kind = type(optimizer)  # a subclass may do anything else in its `step`
    if kind is SGD:
        return 0, base
    if isinstance(optimizer, Adagrad) and kind in (Adagrad, RowwiseAdagrad):
        return (1 if kind is Adagrad else 2), (*base, optimizer.eps)
    if isinstance(optimizer, LazyAdam) and kind is LazyAdam:
        correction = optimizer.correction(num_updates)
        beta1, beta2 = optimizer.beta1, optimizer.beta2
        return 3, (*base, optimizer.eps, 1 - beta1, beta2, 1 - beta2, correction)
    return None


def _check(
    owner: RowOptimizer,
    name: str,
    value: float,
    *,
    above: float | None = None,
    least: float | None = None,
) -> None:
    bound = f"above {above}" if above is not None else f"of at least {least}"
    ok = math.isfinite(value) and (value > above if above is not None else value >= (least or 0))
    if not ok:
        raise UsageError(
            f"{type(owner).__name__}.{name} must be a finite number {bound}, got {value!r}."
        )
