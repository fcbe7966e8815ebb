"""Addresses of tensors for native kernels, after checks of their sizes and types."""

import torch
from torch import Tensor

from tapas.errors import UsageError

F32, I64 = torch.float32, torch.int64


def addresses_of_two(sums: Tensor) -> tuple[int, int]:
    """Addresses of the two rows of `sums` (2, B) float32."""
    size = sums.shape[-1]
    start = address_of(sums, F32, 2, size)
    return start, start + 4 * size


def table_arguments(weight: Tensor) -> tuple[int, bool, int]:
    """Address, whether it is bfloat16, and D of rows (N, D)."""
    half, (num_rows, dim) = weight.dtype is torch.bfloat16, weight.shape
    if weight.untyped_storage().nbytes() < weight.numel() * weight.element_size():
        raise UsageError(
            f"the memory of rows {tuple(weight.shape)} was freed, as by FSDP between steps. "
            "Exclude class tables from what frees it, or gather them first."
        )
    return address_of(weight, torch.bfloat16 if half else F32, num_rows, dim), half, dim


def address_of(tensor: Tensor, dtype: torch.dtype, *shape: int) -> int:
    """The address of `tensor`, after a check that kernels can rely on."""
    if tensor.shape == shape and tensor.dtype is dtype and tensor.is_contiguous():
        return tensor.data_ptr()
    raise UsageError(
        f"a native kernel got {tensor.dtype} {tuple(tensor.shape)}, "
        f"{'' if tensor.is_contiguous() else 'not '}contiguous; expected contiguous {dtype} "
        f"{shape}."
    )


def address_or_none(tensor: Tensor | None, dtype: torch.dtype, *shape: int) -> int | None:
    return None if tensor is None else address_of(tensor, dtype, *shape)
