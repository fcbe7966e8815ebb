"""Several optimizers in one, for training loops and frameworks that accept only one."""

from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate, compress
from typing import Any

import torch

from tapas.errors import UsageError
from tapas.optim.optimizers import RowOptimizer
from tapas.torch_modes import outside_graphs


class Combined(torch.optim.Optimizer):
    """One optimizer that steps several, such as the encoder's and that of the rows.

        Combined(torch.optim.AdamW(model.parameters()), tapas.optim.RowwiseAdagrad(head))

    `param_groups` lists the group dicts of all of them, so that a scheduler reaches every
    learning rate. `state_dict` holds all states and loads into a `Combined` of the same kinds.
    Rows of a `RowOptimizer`, and the anchor parameter that stands for the rows of a table, are
    removed from the other optimizers, since `model.parameters()` includes them.
    """

    optimizers: tuple[torch.optim.Optimizer, ...]

    def __init__(self, *optimizers: torch.optim.Optimizer):
        for one in optimizers:
            if not isinstance(one, torch.optim.Optimizer):
                raise UsageError(
                    f"Combined takes optimizers, got {type(one).__name__}. Build each one first."
                )
            if isinstance(one, torch.optim.LBFGS):
                raise UsageError(
                    "LBFGS calls the model several times in a step and cannot be combined with "
                    "other optimizers. Step it separately from the optimizer of the rows."
                )
        parts = [
            part
            for one in optimizers
            for part in (one.optimizers if isinstance(one, Combined) else (one,))
        ]
        if not parts or len({id(part) for part in parts}) < len(parts):
            raise UsageError("Combined needs at least one optimizer, and each only once.")
        self.optimizers = tuple(parts)
        self._is_built = False
        _leave_anchors_to_rows(self.optimizers)
        super().__init__(self.param_groups, {})
        self._is_built = True

    # Groups and states are read from the parts, which replace them when they load a state.

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for one in self.optimizers for group in one.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._refuse_assignment("param_groups")

    @property
    def state(self) -> Any:
        """The states of all parts by parameter, read-only: change the state of a part instead."""
        found: dict[Any, Any] = defaultdict(dict)
        for one in self.optimizers:
            found.update(one.state)
        return found

    @state.setter
    def state(self, state: Any) -> None:
        self._refuse_assignment("state")

    def _refuse_assignment(self, name: str) -> None:
        if self._is_built:  # torch's constructor assigns empty ones
            raise UsageError(
                f"the {name} of a Combined cannot be assigned. Assign that of one of its "
                f"optimizers, combined.optimizers[0].{name}, or use load_state_dict."
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if any(param_group is group for group in self.param_groups):
            return  # torch's constructor adds the groups of the parts
        raise UsageError(
            "a Combined has no parameter groups of its own. Add the group to one of its "
            "optimizers, combined.optimizers[0].add_param_group(group)."
        )

    @outside_graphs
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all optimizers, or none if the step of rows raises an error."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for one in self.optimizers:
            if isinstance(one, RowOptimizer):
                one.prepare_step()
        for one in self.optimizers:
            one.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.optimizers:
            one.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The states of all parts in one, with parameters numbered consecutively."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        found: dict[str, Any] = {"state": {}, "param_groups": [], "others": []}
        first = 0
        for one in self.optimizers:
            part = one.state_dict()
            state, groups = part.pop("state"), part.pop("param_groups")
            found["state"] |= {first + number: value for number, value in state.items()}
            for group in groups:
                found["param_groups"].append(
                    {**group, "params": [first + number for number in group["params"]]}
                )
            found["others"].append(part)
            first += sum(len(group["params"]) for group in groups)
        if not any(found["others"]):
            del found["others"]  # most optimizers have nothing else
        for after in self._optimizer_state_dict_post_hooks.values():
            found = after(self, found) or found
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load all parts, or none if the state of rows does not fit."""
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        parts = self._parts_of(state_dict)
        for one, part in zip(self.optimizers, parts, strict=True):
            if isinstance(one, RowOptimizer):
                one._check_loaded(part)
        for one, part in zip(self.optimizers, parts, strict=True):
            one.load_state_dict(part)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _parts_of(self, state_dict: dict[str, Any]) -> list[dict[str, Any]]:
        """The state of each part, its parameters numbered from 0."""
        sizes = [len(one.param_groups) for one in self.optimizers]
        groups = state_dict["param_groups"]
        if len(groups) != sum(sizes):
            raise UsageError(
                f"this state has {len(groups)} parameter groups; expected {sum(sizes)}, those of "
                f"{', '.join(type(one).__name__ for one in self.optimizers)}."
            )
        others = state_dict.get("others") or [{} for _ in sizes]
        parts, first = [], 0
        for one, stop, size, other in zip(
            self.optimizers, accumulate(sizes), sizes, others, strict=True
        ):
            mine = groups[stop - size : stop]
            found, expected = (
                [len(group["params"]) for group in some] for some in (mine, one.param_groups)
            )
            if found != expected:
                raise UsageError(
                    f"this state has {found} parameters in the groups of the "
                    f"{type(one).__name__}, expected {expected}. Nothing was loaded."
                )
            last = first + sum(found)
            parts.append(
                {
                    **other,
                    "state": {
                        number - first: value
                        for number, value in state_dict["state"].items()
                        if first <= number < last
                    },
                    "param_groups": [
                        {**group, "params": [number - first for number in group["params"]]}
                        for group in mine
                    ],
                }
            )
            first = last
        return parts

    def __getstate__(self) -> dict[str, Any]:
        kept = ("optimizers", "defaults", "_is_built")
        return {name: self.__dict__[name] for name in kept}

    def __repr__(self) -> str:
        return f"Combined({', '.join(map(repr, self.optimizers))})"


def _leave_anchors_to_rows(optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
    """Remove rows and anchors of row optimizers from the groups of the others."""
    of_rows = [one for one in optimizers if isinstance(one, RowOptimizer)]
    taken = {id(p) for one in of_rows for p in one.anchors_and_rows()}
    for one in optimizers:
        if isinstance(one, RowOptimizer):
            continue
        for group in one.param_groups:
            keep = [id(p) not in taken for p in group["params"]]
            for parameter in compress(group["params"], [not kept for kept in keep]):
                one.state.pop(parameter, None)
            for name in ("params", "param_names"):
                if name in group:
                    group[name] = list(compress(group[name], keep))
    for one in of_rows:
        for queue in one._queues.values():
            queue.reset_mark()
