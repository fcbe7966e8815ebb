"""Exact top k and log partition over all rows.

By native kernels if the rows are on the CPU; else in chunks, so that not all scores are in memory
at once.
"""

from collections.abc import Callable

import torch
from torch import Tensor

import tapas.native as native


def topk_of_chunk(score: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of `score` (B, W): values and columns, low columns first in ties.

    The k are not sorted; `merge_topk` sorts them.
    """
    width = score.shape[1]
    if k >= width:
        return score, torch.arange(width, device=score.device).expand_as(score)
    value, column = score.topk(k + 1, dim=1)
    # torch.topk takes any of equal scores, which matters only for a tie at the k-th place
    tied = (value[:, k - 1] == value[:, k]).nonzero()[:, 0]
    value, column = value[:, :k], column[:, :k]
    if len(tied):
        edge = value[tied, -1:]
        rank = (score[tied] == edge).to(torch.int32) + 2 * (score[tied] > edge).to(torch.int32)
        column = column.clone()
        column[tied] = rank.sort(dim=1, descending=True, stable=True).indices[:, :k]
        value = score.gather(1, column)
    return value, column


def merge_topk(value: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of `value` (B, N) with class `ids` (B, N), best first, ties by ascending id."""
    ids, by_id = ids.sort(dim=1)
    value, by_value = value.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    return value[:, :k], ids.gather(1, by_value)[:, :k]


def exclusions(exclude: Tensor | None) -> tuple[Tensor, Tensor]:
    """(id, row) pairs of `exclude` (B, E) sorted by id, without padding."""
    if exclude is None:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    row, column = (exclude >= 0).nonzero(as_tuple=True)
    ids, order = exclude[row, column].sort()
    return ids, row[order]


SCORES_PER_CHUNK = 1 << 21  # floats of a (B, chunk) block of scores
QUERIES_PER_BLOCK = 256


def topk_rows(
    weight: Tensor, bias: Tensor | None, query: Tensor, k: int, exclude: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Scores and rows (B, k), best first, ties by ascending row.

    Args:
        weight:  (C, D)
        bias:    (C,) or None for 0
        query:   (B, D) float32
        exclude: (B, E) rows to leave out, negative is padding. If fewer than k remain, scores
            end in -inf and rows in -1.
    """
    if k <= native.MAX_TOPK and native.readable(weight, query):
        return native.topk(weight, None if bias is None else bias.float(), query, k, exclude)
    # with too many queries at once, chunks would have few classes and merging would dominate
    parts = [
        _topk_of_block(
            weight,
            bias,
            query[b : b + QUERIES_PER_BLOCK],
            k,
            None if exclude is None else exclude[b : b + QUERIES_PER_BLOCK],
        )
        for b in range(0, max(1, len(query)), QUERIES_PER_BLOCK)
    ]
    return torch.cat([value for value, _ in parts]), torch.cat([rows for _, rows in parts])


def topk_log_prob_rows(
    weight: Tensor, bias: Tensor | None, query: Tensor, k: int, exclude: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`topk_rows` with scores minus the log of the sum over all rows, excluded or not.

    By native kernels in one pass over the rows, a seventh slower than `topk_rows`.
    """
    if k <= native.MAX_TOPK and native.readable(weight, query):
        log_sum = query.new_empty(len(query))
        offset = None if bias is None else bias.float()
        score, rows = native.topk(weight, offset, query, k, exclude, log_sum=log_sum)
    else:
        score, rows = topk_rows(weight, bias, query, k, exclude)
        log_sum = log_sum_rows(weight, bias, query)
    return score - log_sum[:, None], rows


def topk_by_id(
    weight: Tensor,
    bias: Tensor | None,
    query: Tensor,
    k: int,
    exclude: Tensor | None,
    ids_at: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Scores and ids (B, k) of rows whose ids, `ids_at(row)`, are not ascending.

    Ties are ordered by ascending id. If the k-th and the next score tie, more rows are ranked,
    and if all of these tie, too, all rows. Scores are those of the first ranking, because others
    may be rounded differently, and ties between shards would be lost.
    """
    value, ids, tied = _topk_wide(weight, bias, query, k, k + 1, exclude, ids_at)
    if k + 1 < native.MAX_TOPK and bool(tied.any()):
        excluded = None if exclude is None else exclude[tied]
        _, ids[tied], still = _topk_wide(
            weight, bias, query[tied], k, native.MAX_TOPK, excluded, ids_at
        )
        tied = tied.masked_scatter(tied, still)
    if bool(tied.any()):
        excluded = None if exclude is None else exclude[tied]
        _, ids[tied] = _topk_of_block(weight, bias, query[tied], k, excluded, ids_at)
    return value, ids.masked_fill(value == -torch.inf, -1)


def _topk_wide(
    weight: Tensor,
    bias: Tensor | None,
    query: Tensor,
    k: int,
    wide: int,
    exclude: Tensor | None,
    ids_at: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """The k best of the `wide` best rows, and a mask of queries whose ties may go beyond these."""
    wide = min(wide, len(weight))
    value, rows = topk_rows(weight, bias, query, wide, exclude)
    ids = ids_at(rows.clamp(min=0)).masked_fill_(rows < 0, torch.iinfo(torch.int64).max)
    tied = (value[:, k - 1] == value[:, -1]) & (value[:, -1] > -torch.inf)
    return *merge_topk(value, ids, k), tied & (wide < len(weight))


def scaled(bias: Tensor | None, query: Tensor, scale: float) -> tuple[Tensor | None, Tensor]:
    """`bias` (C,) and `query` (B, D) that make all logits `scale` times as large."""
    if scale == 1:
        return bias, query
    return None if bias is None else scale * bias.float(), scale * query


def log_sum_rows(weight: Tensor, bias: Tensor | None, query: Tensor) -> Tensor:
    """log sum_c exp(query . weight_c + bias_c), (B,)."""
    if native.readable(weight, query):
        return native.log_sum(weight, None if bias is None else bias.float(), query)[0]
    total = query.new_full((len(query),), -torch.inf)
    for start, stop in chunks(len(weight), len(query)):
        total = torch.logaddexp(total, _scores(weight, bias, query, start, stop).logsumexp(dim=1))
    return total


def chunks(num_rows: int, num_queries: int) -> list[tuple[int, int]]:
    size = max(1, SCORES_PER_CHUNK // max(1, num_queries))
    return [(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def _scores(weight: Tensor, bias: Tensor | None, query: Tensor, start: int, stop: int) -> Tensor:
    rows = weight[start:stop].float().t()
    with torch.autocast(query.device.type, enabled=False):
        return query @ rows if bias is None else torch.addmm(bias[start:stop].float(), query, rows)


def _topk_of_block(
    weight: Tensor,
    bias: Tensor | None,
    query: Tensor,
    k: int,
    exclude: Tensor | None,
    ids_at: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    excluded, row = (x.to(weight.device) for x in exclusions(exclude))
    value = query.new_full((len(query), k), -torch.inf)
    ids = torch.full_like(value, torch.iinfo(torch.int64).max, dtype=torch.int64)
    for start, stop in chunks(len(weight), len(query)):
        score = _scores(weight, bias, query, start, stop)
        if len(excluded):
            first, last = torch.searchsorted(excluded, excluded.new_tensor([start, stop]))
            score[row[first:last], excluded[first:last] - start] = -torch.inf
        found = torch.arange(start, stop, device=weight.device)
        if ids_at is not None:
            found, order = ids_at(found).sort()
            score = score[:, order]
        best, column = topk_of_chunk(score, k)
        value, ids = merge_topk(
            torch.cat([value, best], dim=1), torch.cat([ids, found[column]], dim=1), k
        )
    return value, ids.masked_fill(value == -torch.inf, -1)
