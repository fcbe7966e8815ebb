"""Exact top-k over clusters and trees: no class is more likely than the choices that lead to it.

Both searches visit likely choices first and skip those that cannot beat the k best classes found
so far. If all classes are about equally likely, nothing is skipped and every row is read.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tapas.candidates import index_of
from tapas.tables import LocalTable
from tapas.tables.exhaustive import log_sum_rows, merge_topk, topk_rows

NO_CLASS = torch.iinfo(torch.int64).max  # sorts after all classes
QUERIES_PER_BLOCK = 256  # searched together
FLOATS_PER_CHUNK = 1 << 21  # of the node rows read at a time
LEAVES_HELD = 1 << 20  # before all but the k best are dropped
SPARE = 16  # extra nodes of each level that the first, greedy search follows


def topk_over_clusters(
    bound: Tensor, search: Callable[[int, Tensor], tuple[Tensor, Tensor]], k: int
) -> tuple[Tensor, Tensor]:
    """The k best classes of all clusters: scores and ids (B, k), highest first.

    Ties go to the lower id; if there are fewer than k, the last are -inf and -1.

    Args:
        bound: (B, G) log-probability of each cluster, an upper bound for its classes.
        search: function of a cluster and positions (N,) of queries that returns scores and ids
            (N, at most k) of the best classes of that cluster, in any order.
    """
    value = bound.new_full((len(bound), k), -torch.inf)
    ids = torch.full_like(value, NO_CLASS, dtype=torch.int64)
    for cluster in bound.mean(dim=0).argsort(descending=True, stable=True).tolist():
        # >=, because an equal score may have a lower id
        who = (bound[:, cluster] >= value[:, -1]).nonzero()[:, 0]
        if len(who):
            score, found = search(cluster, who)
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
    """The k best classes of one cluster, the rows `first` to `last` of `table`.

    `bound` (N,) is the log-probability of the cluster, `exclude` (N, E) are rows to leave out, and
    `ids` are the classes of the rows, ascending within the cluster, so that ties go to the lower.
    """
    weight, bias = table.weight.detach()[first:last], table.bias_or_none()
    bias = None if bias is None else bias[first:last]
    inside = (exclude >= first) & (exclude < last)
    banned = torch.where(inside, exclude - first, -1) if bool(inside.any()) else None
    logit, position = topk_rows(weight, bias, query, min(k, last - first), banned)
    # at most 0 in spite of rounding, so that `bound` is an upper bound
    inner = (logit - log_sum_rows(weight, bias, query)[:, None]).clamp_(max=0.0)
    found = ids[position.clamp(min=0) + first].masked_fill(position < 0, NO_CLASS)
    return bound[:, None] + inner, found


class Leaves(NamedTuple):
    """Classes found for queries, three tensors (N,); a class may be listed twice."""

    example: Tensor
    ids: Tensor
    value: Tensor

    def best(self, k: int) -> "Leaves":
        """The k best of each example, each once, by descending value, then ascending id."""
        order = self.ids.argsort(stable=True)
        order = order[self.example[order].argsort(stable=True)]
        example, ids, value = (part[order] for part in self)
        once = torch.ones_like(ids, dtype=torch.bool)
        once[1:] = (ids[1:] != ids[:-1]) | (example[1:] != example[:-1])
        example, ids, value = example[once], ids[once], value[once]
        order = value.argsort(descending=True, stable=True)
        order = order[example[order].argsort(stable=True)]
        example, ids, value = example[order], ids[order], value[order]
        kept = _index_in_run(example) < k
        return Leaves(example[kept], ids[kept], value[kept])

    def table(self, num_examples: int, k: int) -> tuple[Tensor, Tensor]:
        """Values and ids (B, k) of what `best` returned; -inf and -1 if there are fewer."""
        value = self.value.new_full((num_examples, k), -torch.inf)
        ids = torch.full_like(value, -1, dtype=torch.int64)
        at = (self.example, _index_in_run(self.example))
        return value.index_put(at, self.value), ids.index_put(at, self.ids)


def topk_leaves(
    table: LocalTable, down: Tensor, query: Tensor, k: int, exclude: Tensor
) -> tuple[Tensor, Tensor]:
    """The k best classes of a binary tree: log-probabilities and ids (B, k), highest first.

    Ties go to the lower id.

    Args:
        table:   one row for each of the C - 1 inner nodes; node 0 is the root.
        down:    (C - 1, 2) left and right child of a node: a node, or C - 1 + a class.
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
    """Branch and bound over the tree for a block of queries."""

    def __init__(self, table: LocalTable, down: Tensor, query: Tensor, exclude: Tensor):
        self.table, self.down, self.query = table, down, query
        self.num_classes = len(down) + 1
        row, column = (exclude >= 0).nonzero(as_tuple=True)
        self.banned = (row * self.num_classes + exclude[row, column]).sort().values

    def best(self, k: int, width: int) -> tuple[Tensor, Tensor]:
        found = self.dive(width).best(k)
        least = found.table(len(self.query), k)[0][
            :, -1
        ]  # a class below it is not among the k best
        every = torch.arange(len(self.query), device=self.query.device)
        waiting = [(every, torch.zeros_like(every), self.query.new_zeros(len(every)))]
        while waiting:
            example, node, value = self.below(*waiting.pop())
            possible = (value >= least[example]).nonzero()[:, 0]
            example, node, value = example[possible], node[possible], value[possible]
            leaves, inner = self.split(example, node, value)
            found = Leaves(*(torch.cat(pair) for pair in zip(found, leaves, strict=True)))
            if len(found.ids) > LEAVES_HELD:
                found = found.best(k)
                least = found.table(len(self.query), k)[0][:, -1]
            if len(inner[0]):
                waiting += zip(*(torch.split(part, self.chunk) for part in inner), strict=True)
        return found.best(k).table(len(self.query), k)

    def dive(self, width: int) -> Leaves:
        """Greedy search: leaves below the `width` most likely nodes of each level.

        Every node leads to a different leaf, so at least `width` leaves are found if there are
        as many.
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
        """The `width` most likely nodes of each example and their values, (B, W); -inf is none."""
        order = example.argsort(stable=True)
        example, node, value = example[order], node[order], value[order]
        index = _index_in_run(example)
        shape = (len(self.query), int(index.max()) + 1 if len(index) else 0)
        wide = value.new_full(shape, -torch.inf).index_put((example, index), value)
        nodes = node.new_zeros(shape).index_put((example, index), node)
        value, column = wide.topk(min(width, shape[1]), dim=1)
        return nodes.gather(1, column), value

    def below(self, example: Tensor, node: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Examples, nodes and log-probabilities (2 N,) of both children of each node (N,)."""
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
        """Split nodes into leaves, without excluded classes, and inner nodes."""
        is_leaf = node >= len(self.down)
        at = is_leaf.nonzero()[:, 0]
        leaves = Leaves(example[at], node[at] - len(self.down), value[at])
        out = index_of(self.banned, leaves.example * self.num_classes + leaves.ids)[1]
        if bool(out.any()):
            leaves = Leaves(*(part[~out] for part in leaves))
        at = (~is_leaf).nonzero()[:, 0]
        return leaves, (example[at], node[at], value[at])


def _index_in_run(group: Tensor) -> Tensor:
    """0, 1, 2, ... in each run of equal values of sorted `group` (N,)."""
    position = torch.arange(len(group), device=group.device)
    return position - torch.searchsorted(group, group)
