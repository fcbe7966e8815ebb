"""Logits of target and kept classes, whose backward pass sends the rows their gradients.

One autograd node from the query to the two tensors that a sampled loss needs. A row is
read once, its gradient is written once: to the table's own row optimizer, or as a sparse
gradient to the table's parameters for torch.optim.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tapas.candidates import Candidates
from tapas.losses import kept_gradients, kept_log_sum

if TYPE_CHECKING:
    from tapas.tables.base import ClassTable

Read: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]

# nothing upstream may require a gradient, yet backward must reach the rows
ANCHOR = torch.zeros((), device="cpu", requires_grad=True)
NOTHING = torch.zeros((), device="cpu")


def sampled_logits(
    table: "ClassTable",
    query: Tensor,
    target: Tensor,
    kept: Candidates,
    *,
    read: Read | None = None,
) -> tuple[Tensor, Tensor]:
    """(B, L) own logits and (B,) log of the kept sum; see `ClassTable.sampled_logits`.

    `read` has the rows already, if somebody has fetched them.
    """
    weight: Tensor | None = table._parameters.get("weight")
    bias = table._parameters.get("bias")
    if weight is None:
        weight = NOTHING if table.frozen else ANCHOR
    positive, log_sum = _SampledLogits.apply(  # type: ignore[no-untyped-call]
        query, weight, bias, table, target, kept, read or table.read
    )
    return positive, log_sum


class _SampledLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        table: "ClassTable",
        target: Tensor,
        kept: Candidates,
        read: Read,
    ) -> tuple[Tensor, Tensor]:
        num_examples, num_targets = target.shape
        own = target.reshape(-1)
        num_own = own.shape[0]
        padding = own < 0 if int(own.min()) < 0 else None
        ids = torch.cat([own if padding is None else own.clamp(min=0), kept.ids])
        rows, biases = read(ids)
        own_rows = rows[:num_own].view(num_examples, num_targets, -1)
        kept_rows = rows[num_own:]
        if num_targets == 1:  # the same sum without views, which cost as much as sums here
            positive = (own_rows.view_as(query) * query).sum(dim=1, keepdim=True)
        else:
            positive = (own_rows * query[:, None, :]).sum(dim=2)
        positive += biases[:num_own].view_as(target)
        if padding is not None:
            positive.masked_fill_(padding.view_as(target), -torch.inf)
        offset = biases[num_own:] - kept.log_q
        log_sum, share = kept_log_sum(query, kept_rows, offset, kept.ids, target)
        ctx.table = table
        # parameters get sparse gradients; without a bias parameter it is the anchor alone
        ctx.sparse = None if bias is None else [(p.shape, p.dtype) for p in (weight, bias)]
        ctx.save_for_backward(
            query, own_rows, kept_rows, offset, ids, target, log_sum, share, padding
        )
        return positive, log_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, positive_grad: Tensor, log_sum_grad: Tensor) -> tuple[Any, ...]:
        device = positive_grad.device.type
        if not torch.is_autocast_enabled(device):
            return _send_gradients(ctx, positive_grad, log_sum_grad)
        with torch.autocast(device, enabled=False):
            return _send_gradients(ctx, positive_grad, log_sum_grad)


def _send_gradients(ctx: Any, positive_grad: Tensor, log_sum_grad: Tensor) -> tuple[Any, ...]:
    query, own_rows, kept_rows, offset, ids, target, log_sum, share, padding = ctx.saved_tensors
    single = own_rows.shape[1] == 1
    query_grad, pushed, pushed_bias = kept_gradients(
        query,
        kept_rows,
        offset,
        ids[target.numel() :],
        target,
        log_sum=log_sum,
        share=share,
        grad=log_sum_grad,
    )
    if ctx.needs_input_grad[0]:
        if single:
            query_grad.addcmul_(positive_grad, own_rows.view_as(query))
        else:
            query_grad += (positive_grad[:, :, None] * own_rows).sum(dim=1)
    if single:
        pulled = positive_grad * query
    else:
        pulled = (positive_grad[:, :, None] * query[:, None, :]).view(-1, query.shape[1])
    weight_grad = torch.cat([pulled, pushed])
    bias_grad = torch.cat([positive_grad.reshape(-1), pushed_bias])
    if padding is not None:
        # a padded target is not a touched row: Adam and weight decay would move it
        real = torch.cat([~padding, padding.new_ones(len(pushed))])
        ids, weight_grad, bias_grad = ids[real], weight_grad[real], bias_grad[real]
    if ctx.sparse is None:
        if ctx.needs_input_grad[1]:
            ctx.table.receive(ids, weight_grad, bias_grad)
        return query_grad, *[None] * 6
    sparse = [
        _sparse(ids, grad, *like) if needed else None
        for grad, like, needed in zip(
            (weight_grad, bias_grad), ctx.sparse, ctx.needs_input_grad[1:3], strict=True
        )
    ]
    return query_grad, *sparse, *[None] * 4


def _sparse(ids: Tensor, grad: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return torch.sparse_coo_tensor(ids[None], grad.to(dtype), shape, check_invariants=False)


def lookup(table: "ClassTable", ids: Tensor, *, biases: bool) -> tuple[Tensor, Tensor]:
    """Weights (N, D) and biases (N,) of `ids` (N,); see `ClassTable.live_rows`."""
    weight: Tensor | None = table._parameters.get("weight")
    bias = table._parameters.get("bias") if biases else None
    if weight is None:
        weight = NOTHING if table.frozen else ANCHOR
    found: tuple[Tensor, Tensor] = _Lookup.apply(weight, bias, table, ids, biases)  # type: ignore[no-untyped-call]
    return found


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        bias: Tensor | None,
        table: "ClassTable",
        ids: Tensor,
        biases: bool,
    ) -> tuple[Tensor, Tensor]:
        is_parameter = weight.dim() > 0
        ctx.sparse = [
            (p.shape, p.dtype) if is_parameter and p is not None else None for p in (weight, bias)
        ]
        rows, row_biases, ctx.give_back = table.borrow(ids, biases=biases)
        ctx.save_for_backward(ids)
        return rows, row_biases

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight_grad: Tensor, bias_grad: Tensor) -> tuple[Any, ...]:
        if ctx.sparse[0] is None:
            ctx.give_back(weight_grad.float(), bias_grad.float())
            return (None,) * 5
        (ids,) = ctx.saved_tensors
        sparse = [
            None if like is None else _sparse(ids, grad, *like)
            for grad, like in zip((weight_grad, bias_grad), ctx.sparse, strict=True)
        ]
        return *sparse, None, None, None
