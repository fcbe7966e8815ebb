"""Native updates of rows, and sums of their gradients; see native/updates.h."""

from ctypes import addressof, c_double, c_float
from typing import NamedTuple

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.native.library import call
from tapas.torch_modes import outside_graphs

NUMBERS = {0: 2, 1: 3, 2: 3, 3: 7}  # by formula in updates.h: number of arguments


STATE = {0: (), 1: ("wide",), 2: ("narrow",), 3: ("wide", "wide")}  # and state of a row


class Biases(NamedTuple):
    """Biases that are updated with the rows in one `update`."""

    values: Tensor  # (C,)
    grad: Tensor  # (N,)
    state: list[Tensor]  # (C, 1) each


@outside_graphs  # a compiler's fake tensors have no addresses
def update(
    formula: int, numbers: tuple[float, ...], rows: Tensor, ids: Tensor, grad: Tensor,
    state: list[Tensor], biases: Biases | None = None,
) -> None:  # fmt: skip
    """One optimizer step of rows `ids` (N,) of `rows` (C, W) with `grad` (N, W), in place.

    Gradients of repeated ids are summed. `formula` and `numbers` are as in updates.h; `state` is
    that of the formula, (C, W) or (C, 1) each. `biases` do not decay.
    """
    # checked here, as the kernel does not: it would write beyond the end of a narrower state
    if len(numbers) != NUMBERS[formula]:
        raise UsageError(
            f"update formula {formula} takes {NUMBERS[formula]} numbers, got {len(numbers)}."
        )
    num_rows, (num_ids, dim) = rows.shape[0], grad.shape
    _check_state(formula, rows, num_rows, dim, state)
    _check_gradients(ids, grad, num_rows)
    addresses = [rows.data_ptr(), (grad := grad.contiguous()).data_ptr(), *_two(state)]
    if biases is None:
        addresses += [None] * 4
    else:
        values, bias_grad, of_biases = biases
        _check_state(formula, values, num_rows, 1, of_biases)
        _check_gradients(ids, bias_grad, num_rows)
        if bias_grad.dim() != 1:
            raise _bad_gradients(ids, bias_grad, num_rows)
        bias_grad = bias_grad.contiguous()
        addresses += [values.data_ptr(), bias_grad.data_ptr(), *_two(of_biases)]
    ids = ids.contiguous()
    status = call(
        "tapas_update",
        formula,
        (c_float * len(numbers))(*numbers),
        num_rows,
        ids.data_ptr(),
        num_ids,
        dim,
        *addresses,
        torch.get_num_threads(),
    )
    if status:
        raise _bad_gradients(ids, grad, num_rows)
    # tell autograd that they have changed
    torch.autograd.graph.increment_version([rows] if biases is None else [rows, biases.values])


@outside_graphs
def sum_rows(
    ids: Tensor, grad: Tensor, offset_grad: Tensor, num_rows: int
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Sums of `grad` (N, W) and `offset_grad` (N,) for each distinct id of `ids` (N,).

    Returns: distinct ids (U,), ascending, sums (U, W) and (U,), and the sum of all squares.
    """
    _check_gradients(ids, grad, num_rows)
    if offset_grad.shape != ids.shape or offset_grad.dtype != torch.float32:
        raise UsageError(f"gradients of biases must be float32 {tuple(ids.shape)}.")
    ids, grad, offset_grad = ids.contiguous(), grad.contiguous(), offset_grad.contiguous()
    found, total, offset_total = (torch.empty_like(part) for part in (ids, grad, offset_grad))
    square = c_double()
    size = call(
        "tapas_sum_rows",
        ids.data_ptr(),
        *ids.shape,
        num_rows,
        grad.shape[1],
        grad.data_ptr(),
        offset_grad.data_ptr(),
        torch.get_num_threads(),
        found.data_ptr(),
        total.data_ptr(),
        offset_total.data_ptr(),
        addressof(square),
    )
    if size < 0:
        raise _bad_gradients(ids, grad, num_rows)
    return found[:size], total[:size], offset_total[:size], square.value


def _check_state(formula: int, rows: Tensor, num_rows: int, dim: int, state: list[Tensor]) -> None:
    wanted = [(num_rows, dim if kind == "wide" else 1) for kind in STATE[formula]]
    if [part.shape for part in state] != wanted or rows.numel() != num_rows * dim:
        raise UsageError(
            f"the row optimizer's state has shapes {[tuple(part.shape) for part in state]}; "
            f"expected {wanted} for rows of shape {tuple(rows.shape)}. No row was changed."
        )
    for part in (rows, *state):
        if part.dtype != torch.float32 or not part.is_contiguous() or not part.is_cpu:
            raise UsageError("rows and their state must be contiguous float32. No row was changed.")


def _check_gradients(ids: Tensor, grad: Tensor, num_rows: int) -> None:
    """Check types and shapes; the kernel checks the range of ids before it writes."""
    fits = ids.dtype == torch.int64 and grad.dtype == torch.float32 and grad.shape[:1] == ids.shape
    if not fits or num_rows < 0 or not (ids.is_cpu and grad.is_cpu):
        raise _bad_gradients(ids, grad, num_rows)


def _bad_gradients(ids: Tensor, grad: Tensor, num_rows: int) -> UsageError:
    return UsageError(
        f"gradients of rows must be float32, one for each of their int64 ids from 0 to "
        f"{num_rows - 1}; got {grad.dtype} {tuple(grad.shape)} for {ids.dtype} "
        f"{tuple(ids.shape)}. No row was changed."
    )


def _two(state: list[Tensor]) -> list[int | None]:
    """The addresses of at most two tensors of state."""
    found = [part.data_ptr() for part in state]
    return [*found, None, None][:2]
