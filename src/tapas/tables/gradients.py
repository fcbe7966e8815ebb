"""Autograd functions of class tables: sampled logits and `lookup`.

One node computes both terms of a sampled loss from the query. Rows are read once, and their
gradients go to the table's `GradientQueue` if the backward pass reaches its anchor.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from tapas.candidates import Candidates
from tapas.losses import Shares, kept_gradients, kept_log_sum
from tapas.optim.gradient_queue import GradientQueue
from tapas.torch_modes import first_derivative, outside_graphs

if TYPE_CHECKING:
    from tapas.tables.base import ClassTable

Read: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]


def sampled_logits(
    queue: GradientQueue, read: Read, query: Tensor, target: Tensor, kept: Candidates
) -> tuple[Tensor, Tensor]:
    """(B, L) logits of targets and (B,) log of the kept sum; see `ClassTable.sampled_logits`.

    `read` returns weights and biases of ids; their gradients go to `queue` with the same ids.
    """
    positive, log_sum = _SampledLogits.apply(  # type: ignore[no-untyped-call]
        query, queue.input(), queue, target, kept, read
    )
    return positive, log_sum


class _SampledLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        anchor: Tensor,
        queue: GradientQueue,
        target: Tensor,
        kept: Candidates,
        read: Read,
    ) -> tuple[Tensor, Tensor]:
        num_examples, num_targets = target.shape
        flat_target = target.reshape(-1)
        num_target_rows = flat_target.shape[0]
        padding = flat_target < 0 if int(flat_target.min()) < 0 else None
        ids = torch.cat([flat_target if padding is None else flat_target.clamp(min=0), kept.ids])
        rows, biases = read(ids)
        target_rows = rows[:num_target_rows].view(num_examples, num_targets, -1)
        kept_rows = rows[num_target_rows:]
        if num_targets == 1:  # the same sum without views, which would take as long as the sum
            positive = (target_rows.view_as(query) * query).sum(dim=1, keepdim=True)
        else:
            positive = (target_rows * query[:, None, :]).sum(dim=2)
        positive += biases[:num_target_rows].view_as(target)
        if padding is not None:
            positive.masked_fill_(padding.view_as(target), -torch.inf)
        offset = biases[num_target_rows:] - kept.log_q
        log_sum, shares = kept_log_sum(query, kept_rows, offset, kept.ids, target)
        ctx.queue, ctx.read = queue, read  # keeps the table alive, as a graph does its parameters
        ctx.save_for_backward(query, target_rows, kept_rows, offset, ids, target, padding, *shares)
        return positive, log_sum

    @staticmethod
    @first_derivative
    def backward(ctx: Any, positive_grad: Tensor, log_sum_grad: Tensor) -> tuple[Any, ...]:
        device = positive_grad.device.type
        if not torch.is_autocast_enabled(device):
            return _send_gradients(ctx, positive_grad, log_sum_grad)
        with torch.autocast(device, enabled=False):
            return _send_gradients(ctx, positive_grad, log_sum_grad)


@outside_graphs  # compiled autograd would drop the side effects
def _send_gradients(ctx: Any, positive_grad: Tensor, log_sum_grad: Tensor) -> tuple[Any, ...]:
    query, target_rows, kept_rows, offset, ids, target, padding, *shares = ctx.saved_tensors
    single = target_rows.shape[1] == 1
    query_grad, pushed, pushed_bias = kept_gradients(
        query,
        kept_rows,
        offset,
        ids[target.numel() :],
        target,
        shares=Shares(*shares),
        grad=log_sum_grad,
    )
    if ctx.needs_input_grad[0]:
        if single:
            query_grad.addcmul_(positive_grad, target_rows.view_as(query))
        else:
            query_grad += (positive_grad[:, :, None] * target_rows).sum(dim=1)
    if not ctx.needs_input_grad[1]:
        return query_grad, *[None] * 5
    accumulates = ctx.queue.accumulates(ctx.next_functions[1][0])
    if accumulates:
        if single:
            pulled = positive_grad * query
        else:
            pulled = (positive_grad[:, :, None] * query[:, None, :]).view(-1, query.shape[1])
        weight_grad = torch.cat([pulled, pushed])
        bias_grad = torch.cat([positive_grad.reshape(-1), pushed_bias])
        if padding is not None:
            # padding must not touch a row: Adam and weight decay would move it
            real = torch.cat([~padding, padding.new_ones(len(pushed))])
            ids, weight_grad, bias_grad = ids[real], weight_grad[real], bias_grad[real]
        ctx.queue.add(ids, weight_grad, bias_grad)
    return query_grad, ctx.queue.anchor_grad(accumulates, positive_grad, log_sum_grad), *[None] * 4


def lookup(table: "ClassTable", ids: Tensor, *, biases: bool) -> tuple[Tensor, Tensor]:
    """Weights (N, D) and biases (N,) of `ids` (N,); see `ClassTable.lookup`."""
    found: tuple[Tensor, Tensor] = _Lookup.apply(  # type: ignore[no-untyped-call]
        table.gradients.input(), table, ids, biases
    )
    return found


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, table: "ClassTable", ids: Tensor, biases: bool
    ) -> tuple[Tensor, Tensor]:
        trains = ctx.needs_input_grad[0]
        rows, row_biases, ctx.send = table._fetch(ids, biases=biases, trains=trains)
        ctx.table, ctx.queue = table, table.gradients  # keeps both alive
        return rows, row_biases

    @staticmethod
    @first_derivative
    def backward(ctx: Any, weight_grad: Tensor, bias_grad: Tensor) -> tuple[Any, ...]:
        return _send_row_gradients(ctx, weight_grad, bias_grad)


@outside_graphs
def _send_row_gradients(ctx: Any, weight_grad: Tensor, bias_grad: Tensor) -> tuple[Any, ...]:
    accumulates = ctx.queue.accumulates(ctx.next_functions[0][0])
    if accumulates:
        ctx.send(weight_grad.float().resolve_neg(), bias_grad.float().resolve_neg())
    return ctx.queue.anchor_grad(accumulates, weight_grad, bias_grad), None, None, None
