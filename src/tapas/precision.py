"""Float32 arithmetic, also for callers who are inside torch.autocast."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

Method = TypeVar("Method", bound=Callable[..., Any])


def in_float32(method: Method) -> Method:
    """A method whose first argument is a query, with autocast switched off inside it."""

    @wraps(method)
    def call(self: Any, query: Tensor, *args: Any, **options: Any) -> Any:
        if isinstance(query, Tensor) and torch.is_autocast_enabled(query.device.type):
            with torch.autocast(query.device.type, enabled=False):
                return method(self, query, *args, **options)
        return method(self, query, *args, **options)

    return call  # type: ignore[return-value]
