"""The k best of a stream of score chunks, exact, with equal scores by rising id."""

import torch
from torch import Tensor


def best_of_chunk(score: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of `score` (B, W): values and columns, ties to low columns.

    The order inside the k is not defined yet; `merge` sorts.
    """
    width = score.shape[1]
    if k >= width:
        return score, torch.arange(width, device=score.device).expand_as(score)
    value, column = score.topk(k + 1, dim=1)
    # torch.topk takes any of the equal scores; only a tie across the edge can go wrong
    torn = (value[:, k - 1] == value[:, k]).nonzero()[:, 0]
    value, column = value[:, :k], column[:, :k]
    if len(torn):
        edge = value[torn, -1:]
        rank = (score[torn] == edge).to(torch.int32) + 2 * (score[torn] > edge).to(torch.int32)
        column = column.clone()
        column[torn] = rank.sort(dim=1, descending=True, stable=True).indices[:, :k]
        value = score.gather(1, column)
    return value, column


def merge(value: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of `value` (B, N) with class `ids` (B, N), highest first, ties by rising id."""
    ids, by_id = ids.sort(dim=1)
    value, by_value = value.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    return value[:, :k], ids.gather(1, by_value)[:, :k]


def exclusions(exclude: Tensor | None) -> tuple[Tensor, Tensor]:
    """(id, row) pairs of `exclude` (B, E) sorted by id, padding dropped."""
    if exclude is None:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    row, column = (exclude >= 0).nonzero(as_tuple=True)
    ids, order = exclude[row, column].sort()
    return ids, row[order]
