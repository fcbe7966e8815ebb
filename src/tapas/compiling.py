"""What `torch.compile` must not look into."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

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
