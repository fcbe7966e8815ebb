"""Optimizers of class rows: real torch optimizers whose parameters are the tables' anchors."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from tapas.errors import UsageError
from tapas.optim.gradient_queue import GradientQueue, queues_in
from tapas.optim.row_store import RowGradients, RowStore
from tapas.optim.row_updates import (
    AdagradUpdate,
    LazyAdamUpdate,
    RowUpdate,
    RowwiseAdagradUpdate,
    SGDUpdate,
)
from tapas.torch_modes import outside_graphs

_names_of = cache(lambda formula: [field.name for field in fields(formula)])
WHOLE = ("step", "layout")  # numbers of a state, on the CPU
Rows: TypeAlias = nn.Module | Iterable[nn.Module] | Iterable[dict[str, Any]]


class RowOptimizer(torch.optim.Optimizer):
    """Moves the rows that a step has touched, and no other.

    `rows` is a head, a table or a model that holds some; several of them; or dicts with such
    "params" and numbers of their own, as torch has it. `step` applies the gradients of all calls
    since the last `zero_grad`, each row once; rows without a gradient do not move. What a formula
    remembers of the rows is made in the first step and is a part of `state_dict`. `weight_decay`
    is added to the gradient, as in torch.optim.SGD: of the rows that a step touches, when it does,
    and never of biases.
    """

    formula: ClassVar[type[RowUpdate]]

    def __init__(self, rows: Rows, defaults: dict[str, Any]):
        self._queues: dict[Tensor, GradientQueue] = {}
        self._tables: list[RowStore] = []  # which live as long as their optimizer, as in torch
        self._attached = False
        self.formula(**defaults)  # a bad number is told before anything else
        groups: Any = rows
        if isinstance(rows, nn.Module | Tensor):
            groups = [{"params": rows}]
        else:
            groups = list(rows) if isinstance(rows, Iterable) else [rows]
            if groups and not isinstance(groups[0], dict):
                groups = [{"params": groups}]
        super().__init__(groups, defaults)
        self._attached = True  # rows change hands when nothing can be refused any more
        for queue in self._queues.values():
            self._attach(queue)

    def _attach(self, queue: GradientQueue) -> None:
        queue._optimizer = weakref.ref(self)
        queue.state = self.state.get(queue.anchor, {})
        queue.forget_marks()

    @classmethod
    def fused(cls, **numbers: Any) -> RowUpdate:
        """The same formula as the `row_optimizer` of a head: rows then move inside `backward`.

        Such rows need no optimizer, and hear of none: no scheduler, no clipping, no loss scaling,
        no accumulation but inside `head.accumulate()`.
        """
        return cls.formula(**numbers)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not isinstance(param_group, dict) or "params" not in param_group:
            is_dict = isinstance(param_group, dict)
            found = f"{param_group!r}" if is_dict else f"a {type(param_group).__name__}"
            raise UsageError(
                f"a group of {type(self).__name__} must be a dict with 'params', a head or a "
                f"table, got {found}."
            )
        queues = self._queues_of(param_group["params"])
        update = self._update({**self.defaults, **param_group})
        for queue in queues:
            queue.follow()
            if queue.rows.row_optimizer is not None:
                raise UsageError(
                    f"these rows move in `backward` already, by {queue.rows.row_optimizer}. Leave "
                    "row_optimizer out of the head to have an optimizer move them."
                )
            queue.rows.check_update(update)
        super().add_param_group({**param_group, "params": [queue.anchor for queue in queues]})
        for queue in queues:
            self._queues[queue.anchor] = queue
            self._tables.append(queue.rows)
            if self._attached:
                self._attach(queue)

    def _queues_of(self, params: Any) -> list[GradientQueue]:
        kind = type(self).__name__
        several: list[Any] = (
            list(params)
            if isinstance(params, Iterable) and not isinstance(params, nn.Module | Tensor)
            else [params]
        )
        for given in several:
            if not isinstance(given, nn.Module):
                raise UsageError(
                    f"{kind} moves the rows of heads and tables, got {type(given).__name__}. Pass "
                    "the head itself, not its parameters."
                )
        if not (queues := queues_in(several)):
            raise UsageError(
                f"{kind} was given no head and no class table: it has no rows to move."
            )
        return queues

    def anchors_and_rows(self) -> list[Tensor]:
        """All parameters that no other optimizer should list."""
        tables = [table for table in self._tables if isinstance(table, nn.Module)]
        return [p for table in tables for p in table.parameters()]

    def update_of(self, anchor: Tensor) -> RowUpdate:
        """The formula with the present numbers of the group that `anchor` is in."""
        for group in self.param_groups:
            if any(anchor is one for one in group["params"]):
                return self._update(group)
        raise KeyError("the anchor is in no group of this optimizer")

    def _update(self, group: dict[str, Any]) -> RowUpdate:
        return self.formula(**{name: group[name] for name in self._numbers()})

    def _numbers(self) -> list[str]:
        return _names_of(self.formula)

    @outside_graphs
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move all rows that have gradients. Nothing moves if one of these is not finite."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for queue, update, gradients in self.ready():
            self._move(queue, update, gradients)
            queue.applied()
        return loss

    def ready(self) -> list[tuple[GradientQueue, RowUpdate, RowGradients]]:
        """All that a step will do, or an error that leaves everything as it is."""
        work = []
        for group in self.param_groups:
            update = self._update(group)
            for anchor in group["params"]:
                queue = self._queues[anchor]
                if queue.anchor is not anchor:
                    raise UsageError(
                        "the table has another anchor than when this optimizer was made, as after "
                        "to_empty. Make the optimizer when the rows are where they stay."
                    )
                if queue.optimizer is None:  # one that was made later is gone
                    self._attach(queue)
                if queue.optimizer is not self:
                    raise UsageError(
                        f"the rows of this {type(self).__name__} have another optimizer by now, a "
                        f"{type(queue.optimizer).__name__} that was made later. Step that one."
                    )
                gradients = queue.ready()
                if gradients is not None:
                    queue.rows.check_row_state(update, self.state.get(anchor, {}))
                    work.append((queue, update, gradients))
        return work

    def move(self, queue: GradientQueue, gradients: RowGradients) -> None:
        """One step with `gradients` alone, beside what waits in the queue."""
        self._move(queue, self.update_of(queue.anchor), gradients)

    def _move(self, queue: GradientQueue, update: RowUpdate, gradients: RowGradients) -> None:
        queue.state = self.state.get(queue.anchor, {})
        queue.rows.move_rows(update, gradients, queue.state)
        if queue.state:
            self.state[queue.anchor] = queue.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all rows."""
        for queue in self._queues.values():
            queue.discard()
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Numbers and state as they were saved; a state of other rows or formula is refused."""
        self._check_loaded(state_dict)
        numbers = (n for group in state_dict["param_groups"] for n in group["params"])
        anchors = (a for group in self.param_groups for a in group["params"])
        saved = {a: state_dict["state"].get(n) for n, a in zip(numbers, anchors, strict=False)}
        super().load_state_dict(state_dict)
        for anchor, queue in self._queues.items():
            # copies, as two optimizers must not move one state; torch would round whole numbers
            if given := saved.get(anchor):
                self.state[anchor] = {
                    name: part.clone()
                    if name in WHOLE
                    else part.to(anchor.device, torch.float32, copy=True).contiguous()
                    for name, part in given.items()
                }
            if queue.optimizer is self:
                queue.state = self.state.get(anchor, {})

    def _check_loaded(self, state_dict: dict[str, Any]) -> None:
        kind, groups = type(self).__name__, state_dict["param_groups"]
        for group in groups:
            if lacking := [name for name in self._numbers() if name not in group]:
                raise UsageError(
                    f"this state is not that of a {kind}: it lacks {', '.join(lacking)}. Load it "
                    "into the kind of optimizer that has saved it. Nothing was loaded."
                )
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            return  # torch has words for that
        for saved, mine in zip(groups, self.param_groups, strict=True):
            for number, anchor in zip(saved["params"], mine["params"], strict=True):
                state = state_dict["state"].get(number) or {}
                self._queues[anchor].rows.check_row_state(self._update(saved), state)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        kept = {"_queues": self._queues, "_tables": self._tables, "_attached": True}
        return {**state, **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for queue in self._queues.values():  # a copy of both belongs together
            if queue.optimizer is None:
                self._attach(queue)


class SGD(RowOptimizer):
    """row -= lr * g"""

    formula = SGDUpdate

    def __init__(self, rows: Rows, lr: float = 0.1, *, weight_decay: float = 0.0):
        super().__init__(rows, {"lr": lr, "weight_decay": weight_decay})


class Adagrad(RowOptimizer):
    """sum += g^2;  row -= lr * g / (sqrt(sum) + eps)        (Duchi, Hazan, Singer 2011)

    `initial_sum` is where sums start; state is as large as the rows.
    """

    formula = AdagradUpdate

    def __init__(
        self,
        rows: Rows,
        lr: float = 0.1,
        *,
        weight_decay: float = 0.0,
        initial_sum: float = 1e-6,
        eps: float = 1e-10,
    ):
        numbers = {"weight_decay": weight_decay, "initial_sum": initial_sum, "eps": eps}
        super().__init__(rows, {"lr": lr, **numbers})


class RowwiseAdagrad(Adagrad):
    """Adagrad with one sum for the whole row: sum += mean(g^2). D times less state.

    The choice for large tables, and the one whose learning rate matters least.
    """

    formula = RowwiseAdagradUpdate


class LazyAdam(RowOptimizer):
    """Adam whose moments move only when their row is touched, as torch.optim.SparseAdam.

    State is twice as large as the rows.
    """

    formula = LazyAdamUpdate

    def __init__(
        self,
        rows: Rows,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        numbers = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(rows, {"lr": lr, **numbers})
