"""Checks at the public boundary: shapes by letter, ids by range, numbers by finiteness.

Letters: B examples, L targets of one example, K candidates, C classes, D dimensions.
"""

from math import isfinite, nan
from operator import index

import numpy as np
import torch
from torch import Tensor

from tapas.errors import DataError, UsageError

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_shape(sizes: dict[str, int], **tensors: tuple[Tensor, str]) -> dict[str, int]:
    """Bind one-letter sizes across tensors; `"B K"` means a (batch, candidates) matrix.

    >>> check_shape({"B": 5}, negative=(torch.zeros(5, 7), "B K"))
    {'B': 5, 'K': 7}
    """
    sizes = dict(sizes)
    for name, (tensor, spec) in tensors.items():
        check_tensor(name, tensor)
        letters = spec.split()
        ok = tensor.dim() == len(letters) and all(
            sizes.setdefault(letter, size) == size
            for letter, size in zip(letters, tensor.shape, strict=True)
        )
        if not ok:
            want = ", ".join(f"{c}={sizes[c]}" if c in sizes else c for c in letters)
            raise UsageError(f"{name} has shape {tuple(tensor.shape)}; expected ({want}).")
    return sizes


def check_tensor(name: str, value: object) -> None:
    """A list or an array here is better converted once, by the caller, than in every call."""
    if not isinstance(value, Tensor):
        raise UsageError(
            f"{name} must be a torch.Tensor, got {type(value).__name__}. torch.as_tensor makes one."
        )


def check_integer(name: str, tensor: Tensor) -> Tensor:
    """`tensor` as int64, or an error: a float id is already corrupt above 2^24."""
    check_tensor(name, tensor)
    if tensor.dtype not in INTEGERS:
        raise UsageError(
            f"{name} has dtype {tensor.dtype}; expected int64 class ids. "
            "Convert before the ids ever pass through a float."
        )
    return tensor.long()


def check_ids(name: str, ids: Tensor, num_classes: int, *, hint: str = "") -> Tensor:
    """`ids` as int64, or an error naming one outside 0 .. num_classes-1."""
    ids = check_integer(name, ids)
    if ids.numel():
        low, high = (int(end) for end in ids.aminmax())
        if low < 0 or high >= num_classes:
            bad = low if low < 0 else high
            raise UsageError(
                f"{name} holds class {bad}; expected ids from 0 to {num_classes - 1} "
                f"(num_classes={num_classes}).{hint}"
            )
    return ids


def check_query(query: Tensor, dim: int) -> Tensor:
    """`query` (..., D) as float32 (N, D), or an error naming the first bad row."""
    check_tensor("query", query)
    if not query.is_floating_point():
        raise UsageError(f"query has dtype {query.dtype}; expected floating point.")
    if query.dim() == 0 or query.shape[-1] != dim:
        raise UsageError(
            f"query has shape {tuple(query.shape)}; expected (..., D={dim}), the dim of the table."
        )
    flat = query.reshape(-1, dim).float()
    if not all_finite(flat):
        row = int((~flat.detach().isfinite().all(dim=1)).nonzero()[0])
        raise DataError(
            f"query row {row} holds NaN or inf. The encoder has diverged or its input is bad: look "
            "at that row's input, lower the learning rate or clip gradients."
        )
    return flat


def all_finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or inf. A finite sum proves it; only a bad one pays for more."""
    tensor = tensor.detach()
    return isfinite(float(tensor.sum())) or bool(tensor.isfinite().all())


def number(value: object) -> float:
    """`value` as a float if it is a number, also one of numpy's; NaN if it is not."""
    return float(value) if isinstance(value, int | float | np.number) else nan


def check_positive(name: str, value: int) -> int:
    """`value` if it is a whole number of at least 1."""
    try:
        if isinstance(value, bool):
            raise TypeError
        value = index(value)  # numpy's integers are welcome
    except TypeError:
        raise UsageError(f"{name} must be a whole number, got {value!r}.") from None
    if value < 1:
        raise UsageError(f"{name} must be at least 1, got {value}.")
    return value


def check_samples(num_samples: int, num_classes: int) -> int:
    """`num_samples` as an int, or an error: that many distinct classes must be there."""
    num_samples = check_positive("num_samples", num_samples)
    if num_samples > num_classes:
        raise UsageError(
            f"num_samples is {num_samples}, but there are only {num_classes} classes. "
            "With so few, plain cross_entropy is exact and faster."
        )
    return num_samples
