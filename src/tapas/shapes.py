"""Argument checks: shapes, class ids, finite queries, positive numbers.

Letters: B examples, L targets of one example, K candidates, C classes, D dimensions.
"""

from math import isfinite, nan
from operator import index

import numpy as np
import torch
from torch import Tensor

from tapas.errors import DataError, UsageError

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
MOST = 1 << 62  # of sizes: sums of two fit into 64 bits


def check_shape(sizes: dict[str, int], **tensors: tuple[Tensor, str]) -> dict[str, int]:
    """Check that tensors agree in their sizes; `"B K"` means a (batch, candidates) matrix.

    Returns `sizes` with the sizes that were found. Raises UsageError on the first mismatch.

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
    """Raise UsageError if `value` is no tensor; lists and arrays are not converted."""
    if not isinstance(value, Tensor):
        raise UsageError(
            f"{name} must be a torch.Tensor, got {type(value).__name__}. torch.as_tensor makes one."
        )


def check_integer(name: str, tensor: Tensor) -> Tensor:
    """Return `tensor` as int64. Raises UsageError for floats: they corrupt ids above 2^24."""
    check_tensor(name, tensor)
    if tensor.dtype not in INTEGERS:
        cure = " Keep ids as integers: floats corrupt them." if tensor.is_floating_point() else ""
        raise UsageError(f"{name} has dtype {tensor.dtype}; expected int64 class ids.{cure}")
    return tensor.long()


def check_ids(name: str, ids: Tensor, num_classes: int, *, hint: str = "") -> Tensor:
    """Return `ids` as int64, or raise UsageError naming one outside 0 .. num_classes-1."""
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


def check_device(name: str, device: torch.device | str | None) -> torch.device:
    """`device`, by default torch's, or raise UsageError if torch cannot use it here."""
    try:
        found = torch.get_default_device() if device is None else torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UsageError(
            f"{name} is '{device}', which torch cannot use here: {reason}. Try 'cpu'."
        ) from None
    return found


def check_query(query: Tensor, dim: int) -> Tensor:
    """Return `query` (..., D) as float32 (N, D), or raise an error naming the first bad row."""
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
            f"query row {row} holds NaN or inf. The encoder has diverged or its input is bad: "
            "check that row's input, lower the learning rate or clip gradients."
        )
    return flat


def all_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite. A finite sum proves it, and is faster to compute."""
    tensor = tensor.detach()
    return isfinite(float(tensor.sum())) or bool(tensor.isfinite().all())


def number(value: object) -> float:
    """`value` as a float if it is a Python or numpy number, else NaN."""
    return float(value) if isinstance(value, int | float | np.number) else nan


def check_int(name: str, value: int) -> int:
    """Return `value` as an int, or raise UsageError if it is none, as a float or a bool."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)  # accepts numpy integers, too
    except TypeError:
        raise UsageError(f"{name} must be an integer, got {value!r}.") from None


def check_positive(name: str, value: int) -> int:
    """Return `value` as an int, or raise UsageError if it is not one from 1 to 2^62."""
    value = check_int(name, value)
    if value < 1:
        raise UsageError(f"{name} must be at least 1, got {value}.")
    if value > MOST:
        raise UsageError(f"{name} must be at most 2^62, got {value}.")
    return value


def check_samples(num_samples: int, num_classes: int) -> int:
    """Return `num_samples` as an int, or raise UsageError if there are fewer classes."""
    num_samples = check_positive("num_samples", num_samples)
    if num_samples > num_classes:
        raise UsageError(
            f"num_samples is {num_samples}, but there are only {num_classes} classes. "
            "With so few, plain cross_entropy is exact and faster."
        )
    return num_samples
