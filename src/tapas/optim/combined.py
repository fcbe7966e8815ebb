"""Several optimizers as one, for training loops and frameworks that step only one."""

from collections.abc import Callable
from itertools import accumulate, compress
from typing import Any

import torch

from tapas.compiling import outside_graphs
from tapas.errors import UsageError
from tapas.optim.optimizers import RowOptimizer


class Combined(torch.optim.Optimizer):
    """One optimizer that steps several: that of the encoder and that of the rows.

        Combined(torch.optim.AdamW(model.parameters()), tapas.optim.RowwiseAdagrad(head))

    Its `param_groups` are those of all, one after the other, the same dicts, so that a scheduler
    reaches every learning rate; its `state_dict` holds all and is loaded by a `Combined` of the
    same kinds. Rows that a `RowOptimizer` moves, and their anchors, are taken out of the other
    optimizers: `model.parameters()` lists them, too.
    """

    def __init__(self, *optimizers: torch.optim.Optimizer):
        for one in optimizers:
            if not isinstance(one, torch.optim.Optimizer):
                raise UsageError(
                    f"Combined joins optimizers, got {type(one).__name__}. Build each one first."
                )
        if not optimizers or len({id(one) for one in optimizers}) < len(optimizers):
            raise UsageError("Combined needs optimizers, each once.")
        self.optimizers = optimizers
        _leave_anchors_to_rows(optimizers)
        super().__init__(self.param_groups, {})

    # The groups and states are those of the parts, which replace them when they load a state.

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for one in self.optimizers for group in one.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        pass

    @property
    def state(self) -> Any:
        return {
            parameter: state for one in self.optimizers for parameter, state in one.state.items()
        }

    @state.setter
    def state(self, state: Any) -> None:
        pass

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if any(param_group is group for group in self.param_groups):
            return  # torch's constructor hands over what the parts have already
        raise UsageError("add the group to one of the optimizers that were combined.")

    @outside_graphs
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all, or none if a step of rows is refused."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for one in self.optimizers:
            if isinstance(one, RowOptimizer):
                one.ready()
        for one in self.optimizers:
            one.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.optimizers:
            one.zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        sizes = [len(one.param_groups) for one in self.optimizers]
        groups = state_dict["param_groups"]
        if len(groups) != sum(sizes):
            raise UsageError(
                f"this state has {len(groups)} parameter groups; expected {sum(sizes)}, those of "
                f"{', '.join(type(one).__name__ for one in self.optimizers)}."
            )
        parts = []
        for stop, size in zip(accumulate(sizes), sizes, strict=True):
            mine = groups[stop - size : stop]
            numbers = {number for group in mine for number in group["params"]}
            state = {k: v for k, v in state_dict["state"].items() if k in numbers}
            parts.append({"state": state, "param_groups": mine})
        for one, part in zip(self.optimizers, parts, strict=True):
            found, own = (
                [len(group["params"]) for group in groups]
                for groups in (part["param_groups"], one.param_groups)
            )
            if found != own:
                raise UsageError(
                    f"this state has {found} parameters in the groups of the "
                    f"{type(one).__name__}, expected {own}. Nothing was loaded."
                )
            if isinstance(one, RowOptimizer):
                one._check_loaded(part)
        for one, part in zip(self.optimizers, parts, strict=True):
            one.load_state_dict(part)

    def __getstate__(self) -> dict[str, Any]:
        return {"optimizers": self.optimizers, "defaults": self.defaults}

    def __repr__(self) -> str:
        return f"Combined({', '.join(map(repr, self.optimizers))})"


def _leave_anchors_to_rows(optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
    """Take what row optimizers move out of the others, rows and names included."""
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
            with torch.no_grad():
                queue.anchor.zero_()  # the others may have moved it
