"""The native kernels on tensors. All of them need `reaches(...)` to be true of what they get.

Inputs are float32 but for class rows, which may be bfloat16. Nothing is differentiated.
"""

import torch
from torch import Tensor

from tapas.compiling import outside_graphs
from tapas.errors import UsageError
from tapas.native.library import library

QUERIES = 64  # normalised at once, at least
MOST_QUERIES = 512  # and at most
SCRATCH = 1 << 22  # floats of the matrix they are normalised in, if that holds more
MOST_RANKED = 512  # k up to which `top` is worth it
STATE = {0: (), 1: ("wide",), 2: ("narrow",), 3: ("wide", "wide")}  # of each rule in updates.h


def log_sum(
    weight: Tensor,
    offset: Tensor | None,
    query: Tensor,
    *,
    ids: Tensor | None = None,
    own: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log of the sum over the rows of exp(query . row + offset), and what shares are taken from.

    Args:
        weight: (K, D) rows.
        offset: (K,) or None for 0.
        query:  (B, D)
        ids:    (K,) rising classes of the rows, and
        own:    (B, L) classes of each query itself, which are left out of its sum.

    Returns: log_sum (B,), -inf of nothing, and `sums` (2, B), a reference and an inverse for each
    query: the share of a row in its sum is exp(score - reference) * inverse, 0 of nothing.
    """
    weight, query = _plain(weight), query.contiguous()
    offset, ids, own = (x if x is None else x.contiguous() for x in (offset, ids, own))
    total, sums = query.new_empty(len(query)), query.new_empty(2, len(query))
    library().tapas_log_sum(
        *_table(weight),
        _address(offset),
        len(weight),
        query.data_ptr(),
        len(query),
        _address(ids),
        _address(own),
        0 if own is None else own.shape[1],
        torch.get_num_threads(),
        total.data_ptr(),
        *(part.data_ptr() for part in sums),
    )
    return total, sums


def gradients(
    weight: Tensor, offset: Tensor, query: Tensor, ids: Tensor, own: Tensor,
    *, sums: Tensor, scale: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of (scale * log_sum).sum(), by query (B, D), rows (K, D) and offset (K,).

    `sums` (2, B) is what `log_sum` gave for the same arguments; `scale` (B,).
    """
    weight, query = _plain(weight), query.contiguous()
    offset, ids, own = offset.contiguous(), ids.contiguous(), own.contiguous()
    sums, scale = sums.contiguous(), scale.contiguous()
    query_grad, offset_grad = torch.empty_like(query), torch.empty_like(offset)
    row_grad = query.new_empty(weight.shape)
    library().tapas_gradients(
        *_table(weight),
        offset.data_ptr(),
        len(weight),
        query.data_ptr(),
        len(query),
        ids.data_ptr(),
        own.data_ptr(),
        own.shape[1],
        *(part.data_ptr() for part in sums),
        scale.data_ptr(),
        torch.get_num_threads(),
        row_grad.data_ptr(),
        offset_grad.data_ptr(),
        query_grad.data_ptr(),
    )
    return query_grad, row_grad, offset_grad


def mean_share(
    weight: Tensor, places: Tensor, offset: Tensor, query: Tensor, ids: Tensor, own: Tensor,
    *, temperature: float,
) -> Tensor:  # fmt: skip
    """Mean over queries of the softmax of (query . weight[places] + offset) / temperature, (P,).

    `ids` (P,) are the classes at `places` (P,) of `weight`, `own` (A, L) the classes of each
    query (A, D), which are left out of its softmax.
    """
    weight, query, own = _plain(weight), query.contiguous(), own.contiguous()
    places, offset, ids = places.contiguous(), offset.contiguous(), ids.contiguous()
    num_queries, size = len(query), len(places)
    width = min(max(QUERIES, SCRATCH // max(1, size)), MOST_QUERIES, -(-num_queries // 16) * 16)
    width -= width % 16
    scratch = query.new_empty(size * width)
    share = query.new_empty(size)
    library().tapas_mean_share(
        *_table(weight),
        places.data_ptr(),
        offset.data_ptr(),
        size,
        query.data_ptr(),
        num_queries,
        ids.data_ptr(),
        own.data_ptr(),
        own.shape[1],
        1 / temperature,
        torch.get_num_threads(),
        scratch.data_ptr(),
        width,
        share.data_ptr(),
    )
    return share


def batch_score(
    weight: Tensor, places: Tensor, bias: Tensor, query: Tensor, *, temperature: float
) -> Tensor:
    """log sum_a exp((query_a . weight[places] + bias) / temperature), (P,)."""
    weight, query = _plain(weight), query.contiguous()
    places, bias = places.contiguous(), bias.contiguous()
    score = query.new_empty(len(places))
    library().tapas_batch_score(
        *_table(weight),
        places.data_ptr(),
        bias.data_ptr(),
        len(places),
        query.data_ptr(),
        len(query),
        1 / temperature,
        torch.get_num_threads(),
        score.data_ptr(),
    )
    return score


def top(
    weight: Tensor, bias: Tensor | None, query: Tensor, k: int, exclude: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Scores and rows (B, k) of the k highest query . weight + bias, ties by rising row.

    `exclude` (B, E) are rows to leave out, negative is padding; -inf and -1 where fewer than
    k are left.
    """
    weight, query = _plain(weight), query.contiguous()
    bias = None if bias is None else bias.contiguous()
    num_queries = len(query)
    score = query.new_empty(num_queries, k)
    rows = torch.empty(num_queries, k, dtype=torch.int64, device=query.device)
    start = listed = None
    if exclude is not None:
        listed = exclude.sort(dim=1).values
        real = listed >= 0
        listed = listed[real]
        start = torch.cat([listed.new_zeros(1), real.sum(dim=1).cumsum(0)])
    library().tapas_top(
        *_table(weight),
        _address(bias),
        len(weight),
        query.data_ptr(),
        num_queries,
        k,
        _address(start),
        _address(listed),
        torch.get_num_threads(),
        score.data_ptr(),
        rows.data_ptr(),
    )
    return score, rows


@outside_graphs  # addresses of what a compiler pretends to have lead nowhere
def update(
    rule: int, numbers: tuple[float, ...], rows: Tensor, ids: Tensor, grad: Tensor,
    state: list[Tensor],
) -> None:  # fmt: skip
    """One optimizer step of `rows` (C, W) at `ids` (N,) with gradients `grad` (N, W), in place.

    Gradients of a repeated id are summed. `rule` and `numbers` are as in updates.h; `state`
    is what the rule remembers, in its order: (C, W) or (C, 1) each.
    """
    # the kernel believes what it is given: a narrower state would be written beyond its end
    wanted = [(len(rows), grad.shape[1] if kind == "wide" else 1) for kind in STATE[rule]]
    if [tuple(part.shape) for part in state] != wanted or rows.numel() != len(rows) * grad.shape[1]:
        raise UsageError(
            f"the row optimizer's state has shapes {[tuple(part.shape) for part in state]}; "
            f"expected {wanted} for rows of shape {tuple(rows.shape)}. No row was changed."
        )
    _check_gradients(ids, grad, len(rows))
    floats = [rows, *state]
    if not all(part.dtype == torch.float32 and part.is_contiguous() for part in floats):
        raise UsageError("rows and their state must be contiguous float32. No row was changed.")
    ids, grad = ids.contiguous(), grad.contiguous()
    given = torch.tensor(numbers, dtype=torch.float32)
    first, second = (*(_address(part) for part in state), None, None)[:2]
    library().tapas_update(
        rule,
        given.data_ptr(),
        rows.data_ptr(),
        len(rows),
        grad.shape[1],
        ids.data_ptr(),
        len(ids),
        grad.data_ptr(),
        first,
        second,
        torch.get_num_threads(),
    )
    torch.autograd.graph.increment_version(rows)  # autograd must know that rows have moved


@outside_graphs
def sum_rows(
    ids: Tensor, grad: Tensor, offset_grad: Tensor, num_rows: int
) -> tuple[Tensor, Tensor, Tensor, float]:
    """`grad` (N, W) and `offset_grad` (N,) summed where one of `ids` (N,) repeats.

    Returns: distinct ids (U,), rising, their sums (U, W) and (U,), and the sum of all squares.
    """
    _check_gradients(ids, grad, num_rows)
    if offset_grad.shape != ids.shape or offset_grad.dtype != torch.float32:
        raise UsageError(f"gradients of biases must be float32 {tuple(ids.shape)}.")
    ids, grad, offset_grad = ids.contiguous(), grad.contiguous(), offset_grad.contiguous()
    found, total, offset_total = (torch.empty_like(part) for part in (ids, grad, offset_grad))
    square = torch.zeros(1, dtype=torch.float64)
    size = library().tapas_sum_rows(
        ids.data_ptr(),
        len(ids),
        num_rows,
        grad.shape[1],
        grad.data_ptr(),
        offset_grad.data_ptr(),
        torch.get_num_threads(),
        found.data_ptr(),
        total.data_ptr(),
        offset_total.data_ptr(),
        square.data_ptr(),
    )
    return found[:size], total[:size], offset_total[:size], float(square)


def alias(uniform: Tensor, threshold: Tensor, partner: Tensor) -> Tensor:
    """Positions drawn from an alias table (H,) by `uniform` (k,) numbers in [0, 1), float64."""
    position = torch.empty_like(uniform, dtype=torch.int64)
    library().tapas_alias(
        uniform.data_ptr(),
        len(uniform),
        threshold.data_ptr(),
        partner.data_ptr(),
        len(threshold),
        torch.get_num_threads(),
        position.data_ptr(),
    )
    return position


def mix(
    ids: Tensor, which: Tensor, share: float, uniform: Tensor, threshold: Tensor, partner: Tensor,
    head_ids: Tensor,
) -> Tensor:  # fmt: skip
    """`ids` (k,) with head_ids[alias(uniform)] where `which` (k,) is at least `share`; in place."""
    library().tapas_mix(
        which.data_ptr(),
        len(which),
        share,
        uniform.data_ptr(),
        threshold.data_ptr(),
        partner.data_ptr(),
        len(threshold),
        head_ids.data_ptr(),
        torch.get_num_threads(),
        ids.data_ptr(),
    )
    return ids


def distinct(draws: Tensor, k: int, num_classes: int) -> tuple[int, Tensor, Tensor] | None:
    """The first k distinct of `draws` (T,), or None where there are no more than k.

    Returns: the number of the draw that brought the next class, the ids (k,), rising, and how
    often each came again before it, (k,).
    """
    ids, again = draws.new_empty(k), draws.new_empty(k)
    end = library().tapas_distinct(
        draws.data_ptr(), len(draws), k, num_classes, ids.data_ptr(), again.data_ptr()
    )
    return None if end <= 0 else (end, ids, again)


def permute(ids: Tensor, half: int, keys: Tensor, size: int, *, backwards: bool) -> Tensor:
    """`Permutation.permute` of `ids` (any shape) below `size`, or `inverse`."""
    ids = ids.contiguous()
    out = torch.empty_like(ids)
    library().tapas_permute(
        ids.data_ptr(),
        ids.numel(),
        half,
        keys.data_ptr(),
        size,
        backwards,
        torch.get_num_threads(),
        out.data_ptr(),
    )
    return out


def _check_gradients(ids: Tensor, grad: Tensor, num_rows: int) -> None:
    """The kernels believe what they are given: an id too high would be written beyond all rows."""
    ok = ids.dtype == torch.int64 and grad.dtype == torch.float32 and len(grad) == len(ids)
    if ok and len(ids):
        low, high = ids.aminmax()
        ok = int(low) >= 0 and int(high) < num_rows
    if not ok:
        raise UsageError(
            f"gradients of rows must be float32, one for each of their int64 ids from 0 to "
            f"{num_rows - 1}; got {grad.dtype} {tuple(grad.shape)} for {ids.dtype} "
            f"{tuple(ids.shape)}. No row was changed."
        )


def _plain(weight: Tensor) -> Tensor:
    """As it lies in memory, without what autograd knows of it."""
    return weight.detach().contiguous()


def _table(weight: Tensor) -> tuple[int, bool, int]:
    return weight.data_ptr(), weight.dtype == torch.bfloat16, weight.shape[1]


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
