"""Native kernels of the softmax and the second pass as functions of tensors.

The tensors must be such that `supports(...)` is true.
Inputs are float32, except class rows, which may be bfloat16. Nothing is differentiable.
"""

from ctypes import addressof, c_double, c_int64
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.native.arguments import (
    F32,
    I64,
    address_of,
    address_or_none,
    addresses_of_two,
    table_arguments,
)
from tapas.native.library import OUT_OF_RANGE, call
from tapas.native.work_memory import work_memory

MIN_QUERIES = 64  # normalised at a time
MAX_QUERIES = 512
SCRATCH = 1 << 22  # floats of the matrix in which they are normalised, if MIN_QUERIES fit
MAX_TOPK = 512  # largest k for which `topk` is faster than PyTorch


def log_sum(
    weight: Tensor,
    offset: Tensor | None,
    query: Tensor,
    *,
    ids: Tensor | None = None,
    target: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log of the sum over rows of exp(query . row + offset).

    Args:
        weight: (K, D) rows.
        offset: (K,) or None for 0.
        query:  (B, D)
        ids:    (K,) classes of the rows, ascending.
        target: (B, L) targets of each query, which are left out of its sum.

    Returns: log_sum (B,), -inf if nothing is left; and `sums` (2, B), a reference and an inverse
    for each query. The share of a row in the sum is exp(score - reference) * inverse.
    """
    weight, query = weight.detach().contiguous(), query.contiguous()
    offset, ids, target = (x if x is None else x.contiguous() for x in (offset, ids, target))
    num_rows, num_queries = weight.shape[0], query.shape[0]
    total, sums = query.new_empty(num_queries), query.new_empty(2, num_queries)
    hits = ids is not None and target is not None
    call(
        "tapas_log_sum",
        *table_arguments(weight),
        address_or_none(offset, F32, num_rows),
        num_rows,
        address_of(query, F32, num_queries, weight.shape[1]),
        num_queries,
        address_or_none(ids, I64, num_rows),
        address_or_none(target, I64, num_queries, 0 if target is None else target.shape[1]),
        target.shape[1] if hits and target is not None else 0,
        torch.get_num_threads(),
        total.data_ptr(),
        *addresses_of_two(sums),
    )
    return total, sums


class Sampled(NamedTuple):
    """What `sampled` computes and `sample_gradients` needs, in one block of memory."""

    work: Tensor  # (S,) float32
    kept: int  # K
    queries: int  # B
    targets: int  # L
    dim: int
    with_terms: bool

    def part(self, name: str) -> Tensor:
        """One of the parts of `SampleMemory` in native/sampled.h, by name."""
        _, starts = _sample_memory(*self[1:])
        shape = {
            "kept_rows": (self.kept, self.dim),
            "offset": (self.kept,),
            "target_rows": (self.queries * self.targets, self.dim),
            "positive": (self.queries, self.targets),
            "own": (self.queries, self.targets),
            "terms": (self.kept, self.queries),
        }.get(name, (self.queries,))
        at = starts[PARTS.index(name)]
        stride = -(-self.queries // 16) * 16 + 16 if name == "terms" else shape[-1]
        return self.work.as_strided(shape, (stride, 1)[-len(shape) :], at)


PARTS = (
    "kept_rows", "offset", "target_rows", "positive", "log_sum", "reference", "inverse", "rest",
    "own", "terms",
)  # fmt: skip


@lru_cache(maxsize=256)
def _sample_memory(
    kept: int, queries: int, targets: int, dim: int, with_terms: bool
) -> tuple[int, tuple[int, ...]]:
    """Size of the memory of a `Sampled`, in floats, and where each of PARTS begins."""
    starts = (c_int64 * len(PARTS))()
    where = addressof(starts)
    size = call("tapas_sample_memory", kept, queries, targets, dim, with_terms, where)
    return size, tuple(starts)


class BadValuesError(Exception):
    """Ids were out of range or not ascending, or queries not finite: the message says which."""


def sampled(
    weight: Tensor,
    bias: Tensor | None,
    query: Tensor,
    *,
    kept_at: Tensor,
    kept_ids: Tensor,
    log_q: Tensor,
    target_at: Tensor,
    target: Tensor,
    with_terms: bool,
    counted: Tensor | None = None,
    cost: Tensor | None = None,
    loss: Tensor | None = None,
    factor: float = 1.0,
) -> Sampled:
    """Read rows of targets and kept classes, score the targets, and sum over the kept.

    Args:
        weight:    (N, D) a table, float32 or bfloat16, and its `bias` (N,) of the same type.
        query:     (B, D)
        kept_at:   (K,) rows of the kept classes, which are `kept_ids` (K,), ascending.
        log_q:     (K,)
        target_at: (B, L) rows of the targets, which are `target` (B, L); negative is padding.
        counted:   (B, L) False for a target that is listed again.
        cost:      (B, L) to be filled with -log p of each target, 0 for padding.
        loss:      () to be filled with `factor` times the sum of these.

    Raises BadValuesError if ids or queries cannot be used.
    """
    weight, query = weight.contiguous(), query.contiguous()
    kept_at, kept_ids, log_q = kept_at.contiguous(), kept_ids.contiguous(), log_q.contiguous()
    target_at, target = target_at.contiguous(), target.contiguous()
    (num_rows, dim), (num_queries, num_targets) = weight.shape, target.shape
    num_kept = log_q.shape[0]
    size, _ = _sample_memory(num_kept, num_queries, num_targets, dim, with_terms)
    work = work_memory(size)
    status = call(
        "tapas_sampled",
        *table_arguments(weight),
        address_or_none(bias, weight.dtype, num_rows),
        num_rows,
        address_of(kept_at, I64, num_kept),
        address_of(kept_ids, I64, num_kept),
        address_of(log_q, F32, num_kept),
        num_kept,
        address_of(query, F32, num_queries, dim),
        num_queries,
        address_of(target_at, I64, num_queries, num_targets),
        address_of(target, I64, num_queries, num_targets),
        num_targets,
        address_or_none(counted, torch.bool, num_queries, num_targets),
        torch.get_num_threads(),
        with_terms,
        work.data_ptr(),
        address_or_none(cost, F32, num_queries, num_targets),
        address_or_none(loss, F32),
        factor,
    )
    if status == OUT_OF_RANGE:
        raise BadValuesError(
            f"ids of targets or candidates are not below {num_rows}, or do not ascend"
        )
    if status:
        raise BadValuesError("a query holds NaN or inf")
    return Sampled(work, num_kept, num_queries, num_targets, dim, with_terms)


LOSS, COSTS, LOGITS = range(3)  # what gradients are given for, as in native/sampled.h
EVERYTHING, BEFORE_PRODUCTS, AFTER_PRODUCTS = range(3)


def sample_gradients(
    given: Sampled,
    query: Tensor,
    target: Tensor,
    kept_ids: Tensor,
    *,
    result: int,
    grad: Tensor,
    log_sum_grad: Tensor | None = None,
    factor: float = 1.0,
    biased: bool,
    num_classes: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """Gradients of queries and rows, from what `sampled` has computed with the same arguments.

    Args:
        result: LOSS: `grad` () is that of `factor` times the sum of all costs. COSTS: `grad` (B, L)
            is that of the costs. LOGITS: `grad` (B, L) is that of the scores of targets, and
            `log_sum_grad` (B,) that of the logs of the sums.
        biased: whether offsets have gradients.
        num_classes: all targets are below it.

    Returns: gradients of queries (B, D); distinct ids (U,), gradients of their rows (U, D) and
    biases (U,), 0 unless `biased`; and the sum of the squares of these.
    """
    work, kept, queries, targets, dim, with_terms = given
    query, target, kept_ids = query.contiguous(), target.contiguous(), kept_ids.contiguous()
    grad = grad.resolve_neg().contiguous()
    if log_sum_grad is not None:
        log_sum_grad = log_sum_grad.resolve_neg().contiguous()
    flat, rows = queries * targets, kept + queries * targets
    scale_at = rows * dim + rows + flat
    scaled_at = scale_at + queries
    # gradients of rows and offsets, then of targets, scale and scaled queries
    out = query.new_empty(scaled_at + (queries * dim if with_terms else 0))
    ids, square, at = kept_ids.new_empty(rows), c_double(), out.data_ptr()
    given_grads = [
        result,
        factor,
        address_of(grad, F32, *(() if result == LOSS else (queries, targets))),
        address_or_none(log_sum_grad, F32, queries),
        torch.get_num_threads(),
        at + 4 * (rows * dim + rows),
        at + 4 * scale_at,
        at + 4 * scaled_at if with_terms else None,
        ids.data_ptr(),
        at,
        at + 4 * rows * dim,
    ]
    size, _ = _sample_memory(kept, queries, targets, dim, with_terms)
    before = [address_of(work, F32, size), kept, queries, targets, dim, with_terms]
    after = [
        address_of(query, F32, queries, dim),
        address_of(target, I64, queries, targets),
        address_of(kept_ids, I64, kept),
        num_classes,
        biased,
        *given_grads,
    ]
    name, where = "tapas_sample_gradients", addressof(square)
    if not with_terms:
        query_grad = query.new_empty(queries, dim)
        found = call(name, *before, EVERYTHING, *after, query_grad.data_ptr(), where)
    else:
        call(name, *before, BEFORE_PRODUCTS, *after, None, where)
        terms, wide = given.part("terms"), (dim, 1)
        # with out=, which autocast leaves alone
        query_grad = query.new_empty(queries, dim)
        torch.mm(terms.t(), given.part("kept_rows"), out=query_grad)
        scaled = out.as_strided((queries, dim), wide, scaled_at)
        torch.mm(terms, scaled, out=out.as_strided((kept, dim), wide))
        if biased:
            scale = out.as_strided((queries,), (1,), scale_at)
            torch.mv(terms, scale, out=out.as_strided((kept,), (1,), rows * dim))
        found = call(
            name, *before, AFTER_PRODUCTS, *after, address_of(query_grad, F32, queries, dim), where
        )
    row_grad = out.as_strided((found, dim), (dim, 1))
    offset_grad = out.as_strided((found,), (1,), rows * dim) if biased else query.new_zeros(found)
    return query_grad, ids[:found], row_grad, offset_grad, square.value


def fits(query: Tensor, target: Tensor, num_classes: int) -> bool:
    """Whether all of `query` (B, D) are finite and all of `target` (N,) are classes."""
    return not call(
        "tapas_check_batch",
        address_of(query, F32, *query.shape),
        query.numel(),
        address_of(target, I64, *target.shape),
        target.numel(),
        num_classes,
    )


def gradients(
    weight: Tensor, offset: Tensor, query: Tensor, ids: Tensor, target: Tensor,
    *, sums: Tensor, scale: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of (scale * log_sum).sum() with respect to query (B, D), rows (K, D), offset (K,).

    `sums` (2, B) is from `log_sum` with the same arguments; `scale` is (B,).
    """
    weight, query, scale = weight.detach().contiguous(), query.contiguous(), scale.contiguous()
    offset, ids, target = offset.contiguous(), ids.contiguous(), target.contiguous()
    (num_rows, dim), num_queries = weight.shape, query.shape[0]
    query_grad = query.new_empty(num_queries, dim)
    row_grad, offset_grad = query.new_empty(num_rows, dim), query.new_empty(num_rows)
    call(
        "tapas_gradients",
        *table_arguments(weight),
        address_of(offset, F32, num_rows),
        num_rows,
        address_of(query, F32, num_queries, dim),
        num_queries,
        address_of(ids, I64, num_rows),
        address_of(target, I64, num_queries, target.shape[1]),
        target.shape[1],
        *addresses_of_two(sums),
        address_of(scale, F32, num_queries),
        torch.get_num_threads(),
        row_grad.data_ptr(),
        offset_grad.data_ptr(),
        query_grad.data_ptr(),
    )
    return query_grad, row_grad, offset_grad


class PoolRows(NamedTuple):
    """The classes of a pool, and where their rows are."""

    weight: Tensor  # (N, D) all rows of a table, float32 or bfloat16
    bias: Tensor | None  # (N,) of the same type; None is 0
    positions: Tensor  # (P,) rows of the pool


def mean_share(
    rows: PoolRows, log_q: Tensor, query: Tensor, ids: Tensor, target: Tensor, *, temperature: float
) -> Tensor:
    """Mean over queries of the softmax of (logit - log_q) / temperature over the pool, (P,).

    Args:
        log_q:  (P,) and `ids` (P,), ascending, of the classes in `rows`.
        query:  (A, D)
        target: (A, L) targets of each query, which are left out of its softmax.
    """
    return _priority(rows, log_q, query, ids, target, temperature)[0]


def priority(
    rows: PoolRows, log_q: Tensor, query: Tensor, ids: Tensor, target: Tensor,
    *, temperature: float, noise: Tensor, floor: float, keep: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Positions (keep,) and log weights (keep,) that `Priority` selects with `noise` (P,).

    The other arguments are those of `mean_share`; keep is below P.
    """
    return _priority(rows, log_q, query, ids, target, temperature, noise, floor, keep)[1:]


def _priority(
    rows: PoolRows, log_q: Tensor, query: Tensor, ids: Tensor, target: Tensor, temperature: float,
    noise: Tensor | None = None, floor: float = 0.0, keep: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    weight, query, target = rows.weight.contiguous(), query.contiguous(), target.contiguous()
    positions, log_q, ids = rows.positions.contiguous(), log_q.contiguous(), ids.contiguous()
    num_queries, size = query.shape[0], positions.shape[0]
    width = min(max(MIN_QUERIES, SCRATCH // max(1, size)), MAX_QUERIES, -(-num_queries // 16) * 16)
    share, kept = query.new_empty(size), positions.new_empty(keep)
    log_weight = query.new_empty(keep)
    status = call(
        "tapas_priority",
        *table_arguments(weight),
        address_or_none(rows.bias, weight.dtype, weight.shape[0]),
        weight.shape[0],
        address_of(positions, I64, size),
        address_of(ids, I64, size),
        address_of(log_q, F32, size),
        size,
        address_of(query, F32, num_queries, weight.shape[1]),
        num_queries,
        address_of(target, I64, num_queries, target.shape[1]),
        target.shape[1],
        1 / temperature,
        width - width % 16,
        torch.get_num_threads(),
        None if noise is None else address_of(noise, F32, size),
        floor,
        keep,
        share.data_ptr(),
        kept.data_ptr(),
        log_weight.data_ptr(),
    )
    _check_range(status, weight)
    return share, kept, log_weight


def _check_range(status: int, weight: Tensor) -> None:
    if status:
        raise UsageError(
            f"a pool has classes beyond the {weight.shape[0]:,} rows of its table. Keep as many "
            "rows as the head has classes."
        )


def batch_score(rows: PoolRows, query: Tensor, *, temperature: float) -> Tensor:
    """log sum_a exp((query_a . row + bias) / temperature) of every class of the pool, (P,)."""
    weight, query = rows.weight.contiguous(), query.contiguous()
    positions = rows.positions.contiguous()
    size = positions.shape[0]
    score = query.new_empty(size)
    status = call(
        "tapas_batch_score",
        *table_arguments(weight),
        address_or_none(rows.bias, weight.dtype, weight.shape[0]),
        weight.shape[0],
        address_of(positions, I64, size),
        size,
        address_of(query, F32, query.shape[0], weight.shape[1]),
        query.shape[0],
        1 / temperature,
        torch.get_num_threads(),
        score.data_ptr(),
    )
    _check_range(status, weight)
    return score


def topk(
    weight: Tensor,
    bias: Tensor | None,
    query: Tensor,
    k: int,
    exclude: Tensor | None,
    *,
    log_sum: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Scores and rows (B, k) of the k highest query . weight + bias, ties by ascending row.

    `exclude` (B, E) are rows to leave out, negative is padding; -inf and -1 if fewer than k
    remain. `log_sum` (B,), if given, is filled with the log of the sum of exp(score) over all
    rows, excluded or not.
    """
    weight, query = weight.detach().contiguous(), query.contiguous()
    bias = None if bias is None else bias.contiguous()
    num_queries = query.shape[0]
    score = query.new_empty(num_queries, k)
    rows = torch.empty(num_queries, k, dtype=torch.int64, device=query.device)
    start = listed = None
    if exclude is not None:
        listed = exclude.sort(dim=1).values
        real = listed >= 0
        listed = listed[real]
        start = torch.cat([listed.new_zeros(1), real.sum(dim=1).cumsum(0)])
    call(
        "tapas_top",
        *table_arguments(weight),
        address_or_none(bias, F32, weight.shape[0]),
        weight.shape[0],
        address_of(query, F32, num_queries, weight.shape[1]),
        num_queries,
        k,
        _address(start),
        _address(listed),
        torch.get_num_threads(),
        score.data_ptr(),
        rows.data_ptr(),
        address_or_none(log_sum, F32, num_queries),
    )
    return score, rows


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
