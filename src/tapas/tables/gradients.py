"""Autograd functions of class tables: costs and logits of a sampled softmax, and `lookup`.

One node computes everything from the query. Rows are read once, and their gradients go to the
table's `GradientQueue` if the backward pass reaches its anchor.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

import tapas.native as native
from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.losses import Shares, kept_gradients, kept_log_sum, target_costs
from tapas.optim.gradient_queue import GradientQueue
from tapas.optim.row_store import RowGradients
from tapas.torch_modes import first_derivative, outside_graphs

if TYPE_CHECKING:
    from tapas.tables.base import ClassTable

# Terms of the sums are kept for `backward` where that is faster than computing them again: few
# calls matter more for small batches, and memory that is far from the caches for large ones.
LEAST_WORK = 1 << 20  # multiplications of a matrix product
MOST_TERMS = 1 << 22  # 16 MB
MOST_TERMS_IF_WIDE, WIDE = 1 << 25, 128  # from 128 dimensions on


class StoredRows(NamedTuple):
    """Where the rows of a batch are: in a table of this process, or fetched from elsewhere."""

    weight: Tensor  # (N, D) float32 or bfloat16
    bias: Tensor | None  # (N,) of the same type; None is 0
    target_at: Tensor  # (B, L) rows of the targets; negative is padding
    kept_at: Tensor  # (K,) rows of the kept classes

    def read(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (M, D) and biases (M,) at `positions` (M,), float32."""
        weight = self.weight.index_select(0, positions).float()
        if self.bias is None:
            return weight, weight.new_zeros(len(positions))
        return weight, self.bias.index_select(0, positions).float()


def sampled_logits(
    queue: GradientQueue, rows: StoredRows, query: Tensor, target: Tensor, kept: Candidates
) -> tuple[Tensor, Tensor]:
    """(B, L) logits of targets and (B,) log of the kept sum; see `ClassTable.sampled_logits`.

    Gradients of rows go to `queue` with the ids of `target` and `kept`.
    """
    anchor = queue.input()
    if native.readable(rows.weight, query):
        found = _Sampled.apply(  # type: ignore[no-untyped-call]
            query, anchor, queue, rows, target, kept, None, native.LOGITS, 1.0
        )
    else:
        found = _SampledInTorch.apply(  # type: ignore[no-untyped-call]
            query, anchor, queue, rows, target, kept
        )
    positive, log_sum = found
    return positive, log_sum


def sampled_costs(
    queue: GradientQueue,
    rows: StoredRows,
    query: Tensor,
    target: Tensor,
    kept: Candidates,
    counted: Tensor | None,
    factor: float | None,
) -> Tensor:
    """(B, L) -log p of each target, or `factor` times their sum; see `ClassTable.sampled_costs`."""
    if not native.readable(rows.weight, query):
        positive, log_sum = sampled_logits(queue, rows, query, target, kept)
        costs = target_costs(positive, log_sum, counted, target < 0)
        return costs if factor is None else costs.sum() * factor
    result = native.COSTS if factor is None else native.LOSS
    found: Tensor = _Sampled.apply(  # type: ignore[no-untyped-call]
        query,
        queue.input(),
        queue,
        rows,
        target,
        kept,
        counted,
        result,
        1.0 if factor is None else factor,
    )
    return found


class _Sampled(torch.autograd.Function):
    """With native kernels. Returns the loss, costs or logits that `result` asks for."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        anchor: Tensor,
        queue: GradientQueue,
        rows: StoredRows,
        target: Tensor,
        kept: Candidates,
        counted: Tensor | None,
        result: int,
        factor: float,
    ) -> Tensor | tuple[Tensor, Tensor]:
        ctx.queue, ctx.table = queue, queue.rows  # kept alive, as a graph does its parameters
        ctx.result, ctx.factor = result, factor
        dim, size = query.shape[1], kept.ids.shape[0] * query.shape[0]
        most = MOST_TERMS if dim < WIDE else MOST_TERMS_IF_WIDE
        cost = query.new_empty(target.shape) if result == native.COSTS else None
        loss = query.new_empty(()) if result == native.LOSS else None
        try:
            found = native.sampled(
                rows.weight,
                rows.bias,
                query,
                kept_at=rows.kept_at,
                kept_ids=kept.ids,
                log_q=kept.log_q,
                target_at=rows.target_at,
                target=target,
                with_terms=size <= most and size * dim >= LEAST_WORK,
                counted=counted,
                cost=cost,
                loss=loss,
                factor=factor,
            )
        except native.BadValuesError as error:
            raise UsageError(f"{error}.") from None
        ctx.sizes = found[1:]
        ctx.save_for_backward(query, target, kept.ids, found.work)
        if loss is not None:
            return loss
        if cost is not None:
            return cost
        return found.part("positive").clone(), found.part("log_sum").clone()

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor, log_sum_grad: Tensor | None = None) -> tuple[Any, ...]:
        return _send_gradients(ctx, _gradients, grad, log_sum_grad)


class _SampledInTorch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        anchor: Tensor,
        queue: GradientQueue,
        rows: StoredRows,
        target: Tensor,
        kept: Candidates,
    ) -> tuple[Tensor, Tensor]:
        ctx.queue, ctx.table = queue, queue.rows
        target_rows, biases = rows.read(rows.target_at.reshape(-1).clamp(min=0))
        positive = (target_rows.view(*target.shape, -1) * query[:, None, :]).sum(dim=2)
        positive += biases.view_as(target)
        positive.masked_fill_(target < 0, -torch.inf)
        kept_rows, kept_biases = rows.read(rows.kept_at)
        offset = kept_biases - kept.log_q
        log_sum, shares = kept_log_sum(query, kept_rows, offset, kept.ids, target)
        ctx.save_for_backward(query, target, kept.ids, kept_rows, offset, target_rows, *shares)
        return positive, log_sum

    @staticmethod
    @first_derivative
    def backward(ctx: Any, positive_grad: Tensor, log_sum_grad: Tensor) -> tuple[Any, ...]:
        device = positive_grad.device.type
        if not torch.is_autocast_enabled(device):
            return _send_gradients(ctx, _gradients_in_torch, positive_grad, log_sum_grad)
        with torch.autocast(device, enabled=False):
            return _send_gradients(ctx, _gradients_in_torch, positive_grad, log_sum_grad)


FoundGradients: TypeAlias = tuple[Tensor, RowGradients, float | None]


@outside_graphs  # compiled autograd would drop the side effects
def _send_gradients(
    ctx: Any,
    gradients: Callable[[Any, Tensor, Tensor | None], FoundGradients],
    grad: Tensor,
    log_sum_grad: Tensor | None,
) -> tuple[Any, ...]:
    """Gradients for the inputs of a node, by `gradients`; those of rows go to the queue."""
    wants_query, wants_rows = ctx.needs_input_grad[:2]
    accumulates = ctx.queue.accumulates(ctx.next_functions[1][0]) if wants_rows else False
    query_grad, found, square = gradients(ctx, grad, log_sum_grad)
    none = [None] * (len(ctx.needs_input_grad) - 2)
    for_query = query_grad if wants_query else None
    if not wants_rows:
        return for_query, None, *none
    if accumulates:
        ctx.queue.add(*found, square=square)
    given = (grad,) if log_sum_grad is None else (grad, log_sum_grad)
    return for_query, ctx.queue.anchor_grad(accumulates, *given), *none


def _gradients(ctx: Any, grad: Tensor, log_sum_grad: Tensor | None) -> FoundGradients:
    """Gradients of queries and of distinct rows, and the sum of squares of the latter."""
    query, target, ids, work = ctx.saved_tensors
    query_grad, *found, square = native.sample_gradients(
        native.Sampled(work, *ctx.sizes),
        query,
        target,
        ids,
        result=ctx.result,
        grad=grad,
        log_sum_grad=log_sum_grad,
        factor=ctx.factor,
        biased=ctx.table.has_bias,
        num_classes=ctx.table.num_rows,
    )
    return query_grad, RowGradients(*found), square


def _gradients_in_torch(ctx: Any, positive_grad: Tensor, log_sum_grad: Any) -> FoundGradients:
    """As `_gradients`, but ids repeat. `positive_grad` (B, L) may be anything for padding."""
    query, target, ids, kept_rows, offset, target_rows, matrix, sums = ctx.saved_tensors
    query_grad, pushed, pushed_bias = kept_gradients(
        query, kept_rows, offset, ids, target, shares=Shares(matrix, sums), grad=log_sum_grad
    )
    target_rows = target_rows.view(*target.shape, -1)
    real = (target >= 0).reshape(-1)
    positive_grad = positive_grad.masked_fill(target < 0, 0.0)
    query_grad += (positive_grad[:, :, None] * target_rows).sum(dim=1)
    pulled = (positive_grad[:, :, None] * query[:, None, :]).view(-1, query.shape[1])
    # padding must not touch a row: Adam and weight decay would move it
    found = RowGradients(
        torch.cat([target.reshape(-1)[real], ids]),
        torch.cat([pulled[real], pushed]),
        torch.cat([positive_grad.reshape(-1)[real], pushed_bias]),
    )
    if not ctx.table.has_bias:
        found = found._replace(bias=torch.zeros_like(found.bias))
    return query_grad, found, None


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
