"""Optimizers of class rows: torch optimizers whose parameters are the tables' anchors."""

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
INTEGERS = ("step", "layout")  # entries of a state that are integers, on the CPU
Rows: TypeAlias = nn.Module | Iterable[nn.Module] | Iterable[dict[str, Any]]


class RowOptimizer(torch.optim.Optimizer):
    """Base of the row optimizers, which move only rows with a gradient.

    Args:
        rows: a head, a table, a model that contains some, or an iterable of these; or torch's
            list of dicts, with such modules as "params".

    `step` applies the gradients of all backward passes since the last `zero_grad`, once for each
    row. State is created in the first step and saved in `state_dict`. Weight decay is added to
    the gradient, as in torch.optim.SGD, but only for the rows that a step touches, and never for
    biases.
    """

    formula: ClassVar[type[RowUpdate]]

    def __init__(self, rows: Rows, defaults: dict[str, Any]):
        self._queues: dict[Tensor, GradientQueue] = {}
        self._made: dict[int, tuple[list[Any], RowUpdate]] = {}  # by group: see _current_update
        self._tables: list[RowStore] = []  # kept alive by their optimizer, as parameters in torch
        self._attached = False
        self.formula(**defaults)  # bad hyperparameters raise before anything else
        groups: Any = rows
        if isinstance(rows, nn.Module | Tensor):
            groups = [{"params": rows}]
        else:
            groups = list(rows) if isinstance(rows, Iterable) else [rows]
            if groups and not isinstance(groups[0], dict):
                groups = [{"params": groups}]
        super().__init__(groups, defaults)
        self._attached = True  # only now, as the checks above may have raised
        for queue in self._queues.values():
            self._attach(queue)

    def _attach(self, queue: GradientQueue) -> None:
        queue._optimizer = weakref.ref(self)
        queue.state = self.state.get(queue.anchor, {})
        queue.reset_mark()

    @classmethod
    def fused(cls, **numbers: Any) -> RowUpdate:
        """The same update for `row_optimizer=` of a head or table: rows move inside `backward`.

        Such rows need no optimizer, and schedulers, clipping, loss scaling and accumulation over
        several backward passes do not apply to them, except inside `head.accumulate()`.
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
            queue.follow_rows()
            if queue.rows.row_optimizer is not None:
                raise UsageError(
                    f"these rows already move in `backward`, by {queue.rows.row_optimizer}. Build "
                    "the head without row_optimizer to use an optimizer."
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
                f"{kind} found no class table in what it was given, so it has no rows to move. "
                "Pass a head, a table or a model that contains one."
            )
        return queues

    def anchors_and_rows(self) -> list[Tensor]:
        """All parameters that no other optimizer should list."""
        tables = [table for table in self._tables if isinstance(table, nn.Module)]
        return [p for table in tables for p in table.parameters()]

    def update_of(self, anchor: Tensor) -> RowUpdate:
        """The update with the current hyperparameters of the group of `anchor`."""
        for group in self.param_groups:
            if any(anchor is one for one in group["params"]):
                return self._update(group)
        raise KeyError("the anchor is in no group of this optimizer")

    def _update(self, group: dict[str, Any]) -> RowUpdate:
        return self.formula(**{name: group[name] for name in self._numbers()})

    def _current_update(self, group: dict[str, Any]) -> RowUpdate:
        """`_update`, made again only if a hyperparameter has changed: it checks them."""
        numbers = [group[name] for name in self._numbers()]
        for number in numbers:
            if isinstance(number, Tensor):  # which may change in place
                return self._update(group)
        made = self._made.get(id(group))
        if made is None or made[0] != numbers:
            made = self._made[id(group)] = (numbers, self._update(group))
        return made[1]

    def _numbers(self) -> list[str]:
        return _names_of(self.formula)

    @outside_graphs
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move all rows that have gradients, or none if a gradient is not finite."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for queue, update, gradients in self.prepare_step():
            self._move(queue, update, gradients)
            queue.mark_applied()
        return loss

    def prepare_step(self) -> list[tuple[GradientQueue, RowUpdate, RowGradients]]:
        """What a step will apply; an error, before anything has changed, if it cannot."""
        work = []
        for group in self.param_groups:
            update = self._current_update(group)
            for anchor in group["params"]:
                queue = self._queues[anchor]
                if queue.anchor is not anchor:
                    raise UsageError(
                        "the table's anchor was replaced after this optimizer was created, as by "
                        "to_empty. Create the optimizer after the table is on its final device."
                    )
                if queue.optimizer is None:  # a newer optimizer no longer exists
                    self._attach(queue)
                if queue.optimizer is not self:
                    raise UsageError(
                        f"the rows of this {type(self).__name__} have a newer optimizer, a "
                        f"{type(queue.optimizer).__name__}. Step that one."
                    )
                gradients = queue.prepare_step()
                if gradients is not None:
                    if (state := self.state.get(anchor, {})) is not queue.moved:
                        queue.rows.check_row_state(update, state)
                    work.append((queue, update, gradients))
        return work

    def move(self, queue: GradientQueue, gradients: RowGradients) -> None:
        """Apply one step with only `gradients`; the queue stays as it is."""
        self._move(queue, self.update_of(queue.anchor), gradients)

    def _move(self, queue: GradientQueue, update: RowUpdate, gradients: RowGradients) -> None:
        queue.state = self.state.get(queue.anchor, {})
        queue.rows.move_rows(update, gradients, queue.state)
        queue.moved = queue.state
        if queue.state:
            self.state[queue.anchor] = queue.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all rows."""
        for anchor, queue in self._queues.items():
            queue.discard()
            if set_to_none:
                anchor.grad = None
            elif anchor.grad is not None:
                anchor.grad.detach_().zero_()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load hyperparameters and state; an error if they are of other rows or another formula."""
        self._check_loaded(state_dict)
        numbers = (n for group in state_dict["param_groups"] for n in group["params"])
        anchors = (a for group in self.param_groups for a in group["params"])
        saved = {a: state_dict["state"].get(n) for n, a in zip(numbers, anchors, strict=False)}
        super().load_state_dict(state_dict)
        for anchor, queue in self._queues.items():
            # copies, so that two optimizers never share a state; torch would cast the integers
            if given := saved.get(anchor):
                self.state[anchor] = {
                    name: part.clone()
                    if name in INTEGERS
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
                    "into the kind of optimizer that saved it. Nothing was loaded."
                )
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            return  # torch raises its own error
        for saved, mine in zip(groups, self.param_groups, strict=True):
            for number, anchor in zip(saved["params"], mine["params"], strict=True):
                state = state_dict["state"].get(number) or {}
                self._queues[anchor].rows.check_row_state(self._update(saved), state)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        kept = {"_queues": self._queues, "_tables": self._tables, "_attached": True, "_made": {}}
        return {**state, **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for queue in self._queues.values():  # a copy of table and optimizer stays connected
            if queue.optimizer is None:
                self._attach(queue)


class SGD(RowOptimizer):
    """row -= lr * g"""

    formula = SGDUpdate

    def __init__(self, rows: Rows, lr: float = 0.1, *, weight_decay: float = 0.0):
        super().__init__(rows, {"lr": lr, "weight_decay": weight_decay})


class Adagrad(RowOptimizer):
    """sum += g^2;  row -= lr * g / (sqrt(sum) + eps)        (Duchi, Hazan, Singer 2011)

    Sums start at `initial_sum`; the state is as large as the rows.
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
    """Adagrad with one sum per row instead of one per weight: sum += mean(g^2).

    The usual choice for large tables: the state is one number per row.

    Args:
        rows: a head, a table, a model that contains them, or a list of these.
        lr: learning rate of weights and biases.
        weight_decay: L2 penalty of the rows that a step uses; biases are not decayed.
        initial_sum: what sums start at. 0 would make the first update of a row as long as `lr`.
        eps: added to the square root of the sum.
    """

    formula = RowwiseAdagradUpdate


class LazyAdam(RowOptimizer):
    """Adam that updates moments only for the rows of a step, as torch.optim.SparseAdam.

    The state is twice as large as the rows.
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
