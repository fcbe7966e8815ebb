"""Softmax cross-entropy of each target over the classes of its group.

    cost_p = log sum_{c in group of p} exp(query_p . row_c + bias_c) - (query_p . row_y + bias_y)

y is the class of target p. Targets are sorted by group, and a group is a block of consecutive
rows. One autograd node for any number of groups; it saves one number for each pair of a target
and a class of its group.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tapas.shapes import check_shape
from tapas.torch_modes import first_derivative


def grouped_softmax_costs(
    query: Tensor,
    rows: Tensor,
    bias: Tensor,
    position: Tensor,
    *,
    num_targets: Sequence[int],
    num_rows: Sequence[int],
) -> Tensor:
    """(P,) -log p of each target's class in its group, in nats.

    Args:
        query: (P, D) one for each target, sorted by group.
        rows:  (N, D) rows of all groups, one group after the other.
        bias:  (N,)
        position: (P,) position of the target's row in its group.
        num_targets: number of targets of each group; they sum to P.
        num_rows:    number of rows of each group; they sum to N.

    >>> rows = torch.zeros(5, 2)  # a group of two classes and a group of three
    >>> sizes = {"num_targets": [1, 1], "num_rows": [2, 3]}
    >>> grouped_softmax_costs(torch.ones(2, 2), rows, rows[:, 0], torch.tensor([1, 2]), **sizes)
    tensor([0.6931, 1.0986])
    """
    check_shape(
        {}, query=(query, "P D"), rows=(rows, "N D"), bias=(bias, "N"), position=(position, "P")
    )
    cost: Tensor = _GroupedSoftmax.apply(  # type: ignore[no-untyped-call]
        query, rows, bias, position, list(num_targets), list(num_rows)
    )
    return cost


class _GroupedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        rows: Tensor,
        bias: Tensor,
        position: Tensor,
        num_targets: list[int],
        num_rows: list[int],
    ) -> Tensor:
        cost, pull = [], []
        for q, r, b, at in zip(
            torch.split(query, num_targets),
            torch.split(rows, num_rows),
            torch.split(bias, num_rows),
            torch.split(position[:, None], num_targets),
            strict=True,
        ):
            log_p = torch.addmm(b, q, r.t()).log_softmax(dim=1)
            cost.append(log_p.gather(1, at))
            share = log_p.exp_()
            pull.append(share.scatter_add_(1, at, share.new_full((1, 1), -1.0).expand_as(at)))
        ctx.pull, ctx.num_targets, ctx.num_rows = pull, num_targets, num_rows
        ctx.save_for_backward(query, rows)
        return torch.cat(cost).view(-1).neg_()

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        with torch.autocast(grad.device.type, enabled=False):  # `backward` may run inside of it
            return _gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    query, rows = ctx.saved_tensors
    query_grad, rows_grad = torch.empty_like(query), torch.empty_like(rows)
    bias_grad = []
    for g, q, r, to_query, to_rows, pull in zip(
        torch.split(grad[:, None], ctx.num_targets),
        torch.split(query, ctx.num_targets),
        torch.split(rows, ctx.num_rows),
        torch.split(query_grad, ctx.num_targets),
        torch.split(rows_grad, ctx.num_rows),
        ctx.pull,
        strict=True,
    ):
        scaled = pull * g
        torch.mm(scaled, r, out=to_query)
        torch.mm(scaled.t(), q, out=to_rows)
        bias_grad.append(scaled.sum(dim=0))
    return query_grad, rows_grad, torch.cat(bias_grad), None, None, None
