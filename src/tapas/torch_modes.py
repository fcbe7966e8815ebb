"""What a head keeps out of: torch.compile's graphs, autocast, second derivatives."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from tapas.errors import UsageError

Method = TypeVar("Method", bound=Callable[..., Any])


def outside_graphs(method: Method) -> Method:
    """A method that a compiled model calls as it is, between two of its graphs.

    Draws are named by the step, checks look at values and rows move in `backward`: none of it
    can be part of a graph, and to try would cut it into dozens of small ones.
    """
    disabled: list[Callable[..., Any]] = []

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        if "torch._dynamo" not in sys.modules:  # nothing is compiled; its import takes a second
            return method(*args, **options)
        if not disabled:
            disabled.append(torch.compiler.disable(method))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **options)

    return call  # type: ignore[return-value]


def first_derivative(backward: Method) -> Method:
    """The `backward` of an autograd Function whose result cannot be differentiated again.

    torch's own `once_differentiable` says so only to passes that end where its result was used:
    `autograd.grad(..., create_graph=True)`, and a Hessian with it, would come out as 0.
    """

    @wraps(backward)
    def call(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise UsageError(
                "the gradient of a head cannot be differentiated again: create_graph=True, as of "
                "a Hessian or a gradient penalty, would leave a term out. Use "
                "torch.nn.functional.cross_entropy for it."
            )
        return backward(ctx, *grads)

    return call  # type: ignore[return-value]


def in_float32(method: Method) -> Method:
    """A method whose first argument is a query, with autocast switched off inside it."""

    @wraps(method)
    def call(self: Any, query: Tensor, *args: Any, **options: Any) -> Any:
        if isinstance(query, Tensor) and torch.is_autocast_enabled(query.device.type):
            with torch.autocast(query.device.type, enabled=False):
                return method(self, query, *args, **options)
        return method(self, query, *args, **options)

    return call  # type: ignore[return-value]
