"""The softmax of a class table, whose logits may be scaled: its best classes and probabilities."""

from collections.abc import Callable

import torch
from torch import Tensor

from tapas.tables import ClassTable

ROWS_AT_ONCE = 1 << 17


def best_classes(
    table: ClassTable, query: Tensor, k: int, exclude: Tensor | None, scale: float = 1.0
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Ids (B, k) of the best classes of `query` (B, D), and a function for log-probabilities.

    It returns those of ids (B, L), by the softmax of `scale` times the logits. If all rows are in
    this process, it needs no other pass over them: a log-probability is that of the best class
    and the difference of the two logits.
    """
    if table.ranks.size > 1:
        _, best = table.topk(query, k, exclude=exclude)
        partition = table.log_partition(query, scale=scale)[:, None]
        return best, lambda ids: scale * logits_of(table, query, ids) - partition
    top, best = table.topk_log_prob(query, k, exclude=exclude, scale=scale)

    @torch.no_grad()
    def log_prob(ids: Tensor) -> Tensor:
        first = best[:, :1]
        if bool((first < 0).any()):  # all classes are excluded
            return log_prob_of(table, query, ids, scale)
        logit = scale * logits_of(table, query, torch.cat([first, ids.to(first.device)], dim=1))
        return logit[:, 1:] - logit[:, :1] + top[:, :1]

    return best, log_prob


@torch.no_grad()
def log_prob_of(table: ClassTable, query: Tensor, ids: Tensor, scale: float = 1.0) -> Tensor:
    """Log-probabilities (B, L) of `ids` (B, L) by the softmax of `scale` times the logits."""
    partition = table.log_partition(query, scale=scale)
    return scale * logits_of(table, query, ids) - partition[:, None]


@torch.no_grad()
def logits_of(table: ClassTable, query: Tensor, ids: Tensor) -> Tensor:
    """Logits (B, L) of `ids` (B, L) for `query` (B, D), some queries at a time."""
    found = []
    at_once = max(1, ROWS_AT_ONCE // max(1, ids.shape[1]))
    if table.ranks.size > 1:
        at_once = max(1, len(query))  # all ranks must make the same calls
    parts = torch.split(query, at_once), torch.split(ids.to(query.device), at_once)
    for some, mine in zip(*parts, strict=True):
        weight, bias = table.rows(mine.reshape(-1))
        with torch.autocast(query.device.type, enabled=False):
            logit = torch.einsum("bld,bd->bl", weight.view(*mine.shape, table.dim), some)
        found.append(logit + bias.view_as(mine))
    return torch.cat(found)
