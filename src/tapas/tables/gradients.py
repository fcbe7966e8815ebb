"""Autograd functions of class tables: costs and logits of a sampled softmax, and `lookup`.

One node computes everything from the query. Rows are read once, and their gradients go to the
table's `GradientQueue` if the backward pass reaches its anchor.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

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
LEAST_WORK = 1 << 18  # multiplications of a matrix product
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
    positive, log_sum = _SampledLogits.apply(  # type: ignore[no-untyped-call]
        query, queue.input(), queue, rows, target, kept
    )
    return positive, log_sum


def sampled_costs(
    queue: GradientQueue,
    rows: StoredRows,
    query: Tensor,
    target: Tensor,
    kept: Candidates,
    counted: Tensor | None,
) -> Tensor:
    """(B, L) -log p of each target; see `ClassTable.sampled_costs`."""
    if not native.readable(rows.weight, query):
        return target_costs(*sampled_logits(queue, rows, query, target, kept), counted)
    costs: Tensor = _SampledCosts.apply(  # type: ignore[no-untyped-call]
        query, queue.input(), queue, rows, target, kept, counted
    )
    return costs


class _SampledLogits(torch.autograd.Function):
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
        ctx.queue, ctx.table = queue, queue.rows  # kept alive, as a graph does its parameters
        found = _read_and_sum(rows, query, target, kept)
        ctx.native = native.readable(rows.weight, query)
        ctx.save_for_backward(query, target, kept.ids, *found[:3], *found[5:])
        return found.positive, found.log_sum

    @staticmethod
    @first_derivative
    def backward(ctx: Any, positive_grad: Tensor, log_sum_grad: Tensor) -> tuple[Any, ...]:
        device = positive_grad.device.type
        if not torch.is_autocast_enabled(device):
            return _send_gradients(ctx, ctx.saved_tensors, positive_grad, log_sum_grad)
        with torch.autocast(device, enabled=False):
            return _send_gradients(ctx, ctx.saved_tensors, positive_grad, log_sum_grad)


class _SampledCosts(torch.autograd.Function):
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
    ) -> Tensor:
        ctx.queue, ctx.table, ctx.native = queue, queue.rows, True
        shape = target.shape
        cost = native.Costs(
            query.new_empty(shape), query.new_empty(shape[0]), query.new_empty(shape)
        )
        found = _read_and_sum(rows, query, target, kept, counted, cost)
        ctx.save_for_backward(query, target, kept.ids, *found[:3], *found[5:], cost.rest, cost.own)
        return cost.cost

    @staticmethod
    @first_derivative
    def backward(ctx: Any, cost_grad: Tensor) -> tuple[Any, ...]:
        *saved, rest, own = ctx.saved_tensors
        if cost_grad.shape[1] == 1:
            log_sum_grad = cost_grad.view(-1) * rest
            return _send_gradients(ctx, saved, log_sum_grad.neg().view(-1, 1), log_sum_grad)
        cost_grad = cost_grad.masked_fill(saved[1] < 0, 0.0)  # the cost of padding is always 0
        total = cost_grad.sum(dim=1)
        return _send_gradients(ctx, saved, own * total[:, None] - cost_grad, rest * total)


class _Found(NamedTuple):
    """Fields as in `native.Sampled`; `shares` is set where that has `sums` and `terms`."""

    kept_rows: Tensor
    offset: Tensor
    target_rows: Tensor
    positive: Tensor
    log_sum: Tensor
    matrix: Tensor | None
    sums: Tensor | None
    terms: Tensor | None


def _read_and_sum(
    rows: StoredRows,
    query: Tensor,
    target: Tensor,
    kept: Candidates,
    counted: Tensor | None = None,
    costs: native.Costs | None = None,
) -> _Found:
    """Read the rows of targets and kept classes, score the targets and sum over the kept."""
    if not native.readable(rows.weight, query):
        return _read_and_sum_in_torch(rows, query, target, kept)
    num_kept, dim = len(kept), query.shape[1]
    size = num_kept * len(query)
    most = MOST_TERMS if dim < WIDE else MOST_TERMS_IF_WIDE
    with_terms = size <= most and size * dim >= LEAST_WORK
    try:
        found = native.sampled(
            rows.weight,
            rows.bias,
            query.detach(),
            kept_at=rows.kept_at,
            kept_ids=kept.ids,
            log_q=kept.log_q,
            target_at=rows.target_at,
            target=target,
            with_terms=with_terms,
            counted=counted,
            costs=costs,
        )
    except native.BadValuesError:
        raise UsageError(
            f"ids of targets or candidates are not below {len(rows.weight)} or do not ascend, or "
            "a query holds NaN or inf."
        ) from None
    return _Found(*found[:5], None, *found[5:])


def _read_and_sum_in_torch(
    rows: StoredRows, query: Tensor, target: Tensor, kept: Candidates
) -> _Found:
    flat = rows.target_at.reshape(-1)
    target_rows, biases = rows.read(flat.clamp(min=0))
    positive = (target_rows.view(*target.shape, -1) * query[:, None, :]).sum(dim=2)
    positive += biases.view_as(target)
    positive.masked_fill_(target < 0, -torch.inf)
    kept_rows, kept_biases = rows.read(rows.kept_at)
    offset = kept_biases - kept.log_q
    log_sum, shares = kept_log_sum(query, kept_rows, offset, kept.ids, target)
    return _Found(kept_rows, offset, target_rows, positive, log_sum, *shares, None)


@outside_graphs  # compiled autograd would drop the side effects
def _send_gradients(
    ctx: Any, saved: Any, positive_grad: Tensor, log_sum_grad: Tensor
) -> tuple[Any, ...]:
    """Gradients for the inputs of a node; those of rows go to the queue.

    `positive_grad` (B, L) is 0 or anything for padding.
    """
    gradients = _gradients if ctx.native else _gradients_in_torch
    wants_query, wants_rows = ctx.needs_input_grad[:2]
    accumulates = ctx.queue.accumulates(ctx.next_functions[1][0]) if wants_rows else False
    query_grad, found, square = gradients(
        ctx.table.num_rows, saved, positive_grad, log_sum_grad, biases=ctx.table.has_bias
    )
    none = [None] * (len(ctx.needs_input_grad) - 2)
    for_query = query_grad if wants_query else None
    if not wants_rows:
        return for_query, None, *none
    if accumulates:
        ctx.queue.add(*found, square=square)
    return for_query, ctx.queue.anchor_grad(accumulates, positive_grad, log_sum_grad), *none


def _gradients(
    num_rows: int, saved: Any, positive_grad: Tensor, log_sum_grad: Tensor, *, biases: bool
) -> tuple[Tensor, RowGradients, float]:
    """Gradients of queries and of distinct rows, and the sum of squares of the latter."""
    query, target, ids, kept_rows, offset, target_rows, _, sums, terms = saved
    num_kept, dim = kept_rows.shape
    row_grad = query.new_empty(num_kept + target.numel(), dim)
    offset_grad = query.new_empty(num_kept + target.numel()) if biases or terms is None else None
    scale = None
    if terms is None:
        query_grad, _, _ = native.gradients(
            kept_rows,
            offset,
            query,
            ids,
            target,
            sums=sums,
            scale=log_sum_grad,
            row_grad=row_grad[:num_kept],
            offset_grad=None if offset_grad is None else offset_grad[:num_kept],
        )
    else:
        scale = log_sum_grad * sums[1]
        query_grad = torch.mm(terms.t(), kept_rows)
        torch.mm(terms, query * scale[:, None], out=row_grad[:num_kept])
        if offset_grad is not None:
            torch.mv(terms, scale, out=offset_grad[:num_kept])
    *found, square = native.target_gradients(
        target,
        positive_grad,
        query,
        target_rows,
        ids,
        row_grad=row_grad,
        offset_grad=offset_grad if biases else None,
        num_classes=num_rows,
        query_grad=query_grad,
        query_scale=scale,
    )
    return query_grad, RowGradients(*found), square


def _gradients_in_torch(
    num_rows: int, saved: Any, positive_grad: Tensor, log_sum_grad: Tensor, *, biases: bool
) -> tuple[Tensor, RowGradients, None]:
    """As `_gradients`, but ids repeat."""
    query, target, ids, kept_rows, offset, target_rows, matrix, sums, _ = saved
    shares = Shares(matrix, sums)
    query_grad, pushed, pushed_bias = kept_gradients(
        query, kept_rows, offset, ids, target, shares=shares, grad=log_sum_grad
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
    if not biases:
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
