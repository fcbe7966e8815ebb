"""Decorators that keep heads out of torch.compile graphs, autocast and double backward."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from tapas.errors import UsageError

Method = TypeVar("Method", bound=Callable[..., Any])


def outside_graphs(method: Method) -> Method:
    """Run `method` eagerly, between the graphs of a compiled model.

    Heads draw samples, check values and update rows in `backward`. None of this can be traced;
    trying would break the graph into dozens of small ones.
    """
    disabled: list[Callable[..., Any]] = []

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        # importing torch._dynamo takes a second, and calling through it a few microseconds
        if "torch._dynamo" not in sys.modules or not (
            torch.compiler.is_compiling() or _compiles_frames()
        ):
            return method(*args, **options)
        if not disabled:
            disabled.append(torch.compiler.disable(method))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **options)

    return call  # type: ignore[return-value]


def _compiles_frames() -> bool:
    """Whether torch._dynamo would now compile the functions that are called."""
    return torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None


def first_derivative(backward: Method) -> Method:
    """Raise UsageError when this `backward` is differentiated again (create_graph=True).

    torch's `once_differentiable` does not always raise: with `autograd.grad(...,
    create_graph=True)` the second derivative could silently be 0.
    """

    @wraps(backward)
    def call(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise UsageError(
                "the gradient of a head cannot be differentiated again: with create_graph=True, "
                "as for a Hessian or a gradient penalty, a term would be missing. Use "
                "torch.nn.functional.cross_entropy instead."
            )
        return backward(ctx, *grads)

    return call  # type: ignore[return-value]


def in_float32(method: Method) -> Method:
    """Switch autocast off inside a method whose first argument is a query."""

    @wraps(method)
    def call(self: Any, query: Tensor, *args: Any, **options: Any) -> Any:
        if isinstance(query, Tensor) and torch.is_autocast_enabled(query.device.type):
            with torch.autocast(query.device.type, enabled=False):
                return method(self, query, *args, **options)
        return method(self, query, *args, **options)

    return call  # type: ignore[return-value]
