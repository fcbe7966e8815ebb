"""Exact top-k of heads that decide in steps: nothing below a choice is likelier than the choice.

Both searches go to the likely choices first and leave out what cannot reach the k best found so
far; where all classes are about equally likely that is nothing, and they look at every row.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tapas.candidates import index_of
from tapas.tables import LocalTable
from tapas.tables.exhaustive import log_sum_rows, merge_topk, topk_rows

NOBODY = torch.iinfo(torch.int64).max  # sorts behind all classes
QUERIES_PER_BLOCK = 256  # searched together
FLOATS_PER_CHUNK = 1 << 21  # of node rows read at once
LEAVES_HELD = 1 << 20  # before all but the k best are let go
SPARE = 16  # nodes that the first dive follows beyond those it must


def topk_over_clusters(
    bound: Tensor, look: Callable[[int, Tensor], tuple[Tensor, Tensor]], k: int
) -> tuple[Tensor, Tensor]:
    """Scores and ids (B, k), highest first, equal scores by rising id, -inf and -1 where none.

    Args:
        bound: (B, G) log-probability of each part, which no class of it exceeds.
        look:  of a part and places (N,) of queries: scores and ids (N, at most k) of the best
            that the part has for them, in any order.
    """
    value = bound.new_full((len(bound), k), -torch.inf)
    ids = torch.full_like(value, NOBODY, dtype=torch.int64)
    for part in bound.mean(dim=0).argsort(descending=True, stable=True).tolist():
        # an equal score may be of a lower id
        who = (bound[:, part] >= value[:, -1]).nonzero()[:, 0]
        if len(who):
            score, found = look(part, who)
            value[who], ids[who] = merge_topk(
                torch.cat([value[who], score], dim=1), torch.cat([ids[who], found], dim=1), k
            )
    return value, ids.masked_fill(value == -torch.inf, -1)


def topk_in_cluster(
    table: LocalTable,
    first: int,
    last: int,
    query: Tensor,
    bound: Tensor,
    k: int,
    *,
    exclude: Tensor,
    ids: Tensor,
) -> tuple[Tensor, Tensor]:
    """What a part has: the k best of a softmax over rows `first` to `last` of `table`.

    `bound` (N,) is the part's own log-probability, `exclude` (N, E) are rows to leave out and
    `ids` the class of each row, which rises in the part, so that ties go to the lowest.
    """
    weight, bias = table.weight.detach()[first:last], table.bias_or_none()
    bias = None if bias is None else bias[first:last]
    inside = (exclude >= first) & (exclude < last)
    banned = torch.where(inside, exclude - first, -1) if bool(inside.any()) else None
    logit, place = topk_rows(weight, bias, query, min(k, last - first), banned)
    # never above 0, also when rounded: the bound is a bound
    inner = (logit - log_sum_rows(weight, bias, query)[:, None]).clamp_(max=0.0)
    found = ids[place.clamp(min=0) + first].masked_fill(place < 0, NOBODY)
    return bound[:, None] + inner, found


class Leaves(NamedTuple):
    """Classes that were found for queries, three tensors (N,); a class may be there twice."""

    example: Tensor
    ids: Tensor
    value: Tensor

    def best(self, k: int) -> "Leaves":
        """The k best of each example, by falling value and rising id, each class once."""
        order = self.ids.argsort(stable=True)
        order = order[self.example[order].argsort(stable=True)]
        example, ids, value = (part[order] for part in self)
        once = torch.ones_like(ids, dtype=torch.bool)
        once[1:] = (ids[1:] != ids[:-1]) | (example[1:] != example[:-1])
        example, ids, value = example[once], ids[once], value[once]
        order = value.argsort(descending=True, stable=True)
        order = order[example[order].argsort(stable=True)]
        example, ids, value = example[order], ids[order], value[order]
        kept = _rank(example) < k
        return Leaves(example[kept], ids[kept], value[kept])

    def table(self, num_examples: int, k: int) -> tuple[Tensor, Tensor]:
        """Values and ids (B, k) of what `best` gave; -inf and -1 where there are fewer."""
        value = self.value.new_full((num_examples, k), -torch.inf)
        ids = torch.full_like(value, -1, dtype=torch.int64)
        place = (self.example, _rank(self.example))
        return value.index_put(place, self.value), ids.index_put(place, self.ids)


def topk_leaves(
    table: LocalTable, down: Tensor, query: Tensor, k: int, exclude: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and classes (B, k) of a binary tree, highest first, ties by rising id.

    Args:
        table:   a row for each of the C - 1 inner nodes; node 0 is the root.
        down:    (C - 1, 2) what is left and right of a node: a node, or C - 1 + a class.
        query:   (B, D)
        exclude: (B, E) classes to leave out, negative is padding.
    """
    width = min(k + exclude.shape[1] + SPARE, len(down))
    block = max(1, min(QUERIES_PER_BLOCK, LEAVES_HELD // (16 * width)))
    parts = [
        _Search(table, down, query[b : b + block], exclude[b : b + block]).best(k, width)
        for b in range(0, len(query), block)
    ]
    if not parts:
        return query.new_empty(0, k), torch.empty(0, k, dtype=torch.int64, device=query.device)
    return torch.cat([value for value, _ in parts]), torch.cat([ids for _, ids in parts])


class _Search:
    def __init__(self, table: LocalTable, down: Tensor, query: Tensor, exclude: Tensor):
        self.table, self.down, self.query = table, down, query
        self.num_classes = len(down) + 1
        row, column = (exclude >= 0).nonzero(as_tuple=True)
        self.banned = (row * self.num_classes + exclude[row, column]).sort().values

    def best(self, k: int, width: int) -> tuple[Tensor, Tensor]:
        found = self.dive(width).best(k)
        least = found.table(len(self.query), k)[0][:, -1]  # what a class must reach
        everybody = torch.arange(len(self.query), device=self.query.device)
        waiting = [(everybody, torch.zeros_like(everybody), self.query.new_zeros(len(everybody)))]
        while waiting:
            example, node, value = self.below(*waiting.pop())
            hopeful = (value >= least[example]).nonzero()[:, 0]
            example, node, value = example[hopeful], node[hopeful], value[hopeful]
            leaves, inner = self.split(example, node, value)
            found = Leaves(*(torch.cat(pair) for pair in zip(found, leaves, strict=True)))
            if len(found.ids) > LEAVES_HELD:
                found = found.best(k)
                least = found.table(len(self.query), k)[0][:, -1]
            if len(inner[0]):
                waiting += zip(*(torch.split(part, self.chunk) for part in inner), strict=True)
        return found.best(k).table(len(self.query), k)

    def dive(self, width: int) -> Leaves:
        """Leaves below the `width` likeliest nodes of each level: k good ones for each query.

        A kept node leads to a leaf of its own, so at least `width` leaves come out, if there
        are as many.
        """
        num_examples = len(self.query)
        example = torch.arange(num_examples, device=self.query.device)[:, None]
        node = torch.zeros_like(example)
        value = self.query.new_zeros(node.shape)
        found = []
        while bool((value > -torch.inf).any()):
            real = (value > -torch.inf).nonzero(as_tuple=True)
            who, node, value = self.below(example.expand_as(node)[real], node[real], value[real])
            leaves, (who, node, value) = self.split(who, node, value)
            found.append(leaves)
            node, value = self.widest(who, node, value, width)
        return Leaves(*(torch.cat(part) for part in zip(*found, strict=True)))

    def widest(
        self, example: Tensor, node: Tensor, value: Tensor, width: int
    ) -> tuple[Tensor, Tensor]:
        """(B, W) the `width` likeliest nodes of each example, -inf where there are fewer."""
        order = example.argsort(stable=True)
        example, node, value = example[order], node[order], value[order]
        rank = _rank(example)
        shape = (len(self.query), int(rank.max()) + 1 if len(rank) else 0)
        wide = value.new_full(shape, -torch.inf).index_put((example, rank), value)
        nodes = node.new_zeros(shape).index_put((example, rank), node)
        value, column = wide.topk(min(width, shape[1]), dim=1)
        return nodes.gather(1, column), value

    def below(self, example: Tensor, node: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both children of every (N,) node, which has log-probability `value` for its example."""
        logit = []
        for who, which in zip(
            *(torch.split(part, self.chunk) for part in (example, node)), strict=True
        ):
            rows, bias = self.table.rows(which)
            logit.append((rows * self.query.index_select(0, who)).sum(dim=1) + bias)
        way = torch.cat(logit) if logit else value
        both = functional.logsigmoid(torch.stack([way, -way], dim=1)) + value[:, None]
        return example.repeat_interleave(2), self.down[node].reshape(-1), both.reshape(-1)

    @property
    def chunk(self) -> int:
        return max(1, FLOATS_PER_CHUNK // self.table.dim)

    def split(
        self, example: Tensor, node: Tensor, value: Tensor
    ) -> tuple[Leaves, tuple[Tensor, Tensor, Tensor]]:
        """The classes among nodes, without the excluded ones, and the inner nodes."""
        is_leaf = node >= len(self.down)
        at = is_leaf.nonzero()[:, 0]
        leaves = Leaves(example[at], node[at] - len(self.down), value[at])
        out = index_of(self.banned, leaves.example * self.num_classes + leaves.ids)[1]
        if bool(out.any()):
            leaves = Leaves(*(part[~out] for part in leaves))
        at = (~is_leaf).nonzero()[:, 0]
        return leaves, (example[at], node[at], value[at])


def _rank(group: Tensor) -> Tensor:
    """0, 1, 2, ... in each run of equal values of sorted `group` (N,)."""
    place = torch.arange(len(group), device=group.device)
    return place - torch.searchsorted(group, group)
