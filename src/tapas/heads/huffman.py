"""Hierarchical softmax (Morin and Bengio 2005) over a Huffman tree (Mikolov et al. 2013).

    log p(y | q) = sum over nodes n on the path from the root to y of
                   log sigmoid( +(q . row_n + bias_n) )    if the path goes left, - if right

Each of the C - 1 inner nodes has a row, classes have none. Frequent classes are near the root: a
target needs as many scores as its Huffman code has bits.
"""

from typing import NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tapas.heads.tree import Counts, TreeHead, TreeOptions, check_counts
from tapas.heads.tree_search import topk_leaves
from tapas.tables import LocalTable


class HuffmanSoftmax(TreeHead):
    """A binary decision at every inner node of a Huffman tree of the classes.

    Args:
        counts: (C,) how often each class was seen; ids may be in any order.
        options: `row_optimizer`, `bias`, `seed` and so on; see `TreeHead`. Rows start at 0 and
            biases such that p(y) is proportional to count_y + 1 for every query.
    """

    method = "huffman"
    title = "Hierarchical softmax, Huffman tree"
    paper = "Morin, Bengio 2005"
    bibtex = ("morin2005hierarchical", "mikolov2013distributed")

    down: Tensor  # (C - 1, 2) left and right child of a node: a node, or C - 1 + a class
    up: Tensor  # (2C - 1,) of a node or C - 1 + a class: 2 * parent, + 1 if right; -1 for the root

    def __init__(self, counts: Counts, dim: int, **options: Unpack[TreeOptions]):
        seen = check_counts(counts)
        super().__init__(len(seen), dim, **options)
        tree = huffman_tree(seen)
        self._register_layout(down=tree.down, up=tree.up)
        self.nodes = _Nodes(
            len(seen) - 1,
            dim,
            row_optimizer=self._row_optimizer,
            bias=torch.from_numpy(tree.log_odds(seen + 1)) if self._bias else False,
            seed=self.seed,
            device=self._device,
        )
        self._mean_depth = tree.mean_depth(seen if seen.any() else seen + 1)

    @property
    def scores_per_example(self) -> float:
        """Nodes on the path to a target, averaged by counts."""
        return self._mean_depth

    @property
    def device(self) -> torch.device:
        return self.nodes.device

    def layout(self) -> Tensor:
        return self.down

    def neg_log_prob(self, query: Tensor, target: Tensor) -> Tensor:
        example, column = (target >= 0).nonzero(as_tuple=True)
        path, edge = self.paths(target[example, column])
        rows, bias = self.nodes.lookup(edge >> 1, return_bias=True)
        logit = (rows * query.index_select(0, example[path])).sum(dim=1) + bias
        # -log sigmoid(x) = softplus(-x)
        cost = functional.softplus(torch.where((edge & 1).bool(), logit, -logit))
        position = (example * target.shape[1] + column)[path]
        return query.new_zeros(target.numel()).index_add(0, position, cost).view(target.shape)

    def paths(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """All edges on the paths from the root to the classes `ids` (N,).

        Returns: the position in `ids` and 2 * node + (goes right) of each edge, (P,) both.
        """
        at, edges = ids + len(self.down), []
        while True:
            edge = self.up.index_select(0, at)
            if not bool((edge >= 0).any()):
                break
            edges.append(edge)
            at = (edge >> 1).clamp_(min=0)  # shorter paths stay at the root
        every = torch.stack(edges, dim=1)
        owner, step = (every >= 0).nonzero(as_tuple=True)
        return owner, every[owner, step]

    def _topk(self, query: Tensor, k: int, exclude: Tensor) -> tuple[Tensor, Tensor]:
        return topk_leaves(self.nodes, self.down, query, k, exclude)


class _Nodes(LocalTable):
    """Rows of the inner nodes, initialised to 0."""

    def init_rows(self, weight: Tensor) -> None:
        weight.zero_()


class Tree(NamedTuple):
    """A binary tree over classes; inner nodes are numbered by descending count, the root is 0."""

    down: NDArray[np.int64]  # (C - 1, 2), as in the head
    up: NDArray[np.int64]  # (2C - 1,)

    def below(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """(2C - 1,) the sum of `counts` (C,) below each inner node, followed by `counts`."""
        level, levels = np.zeros(1, np.int64), []
        while len(level):
            levels.append(level)
            level = self.down[level].reshape(-1)
            level = level[level < len(self.down)]
        below = np.concatenate([np.zeros(len(self.down), np.int64), counts])
        for level in reversed(levels):
            below[level] = below[self.down[level]].sum(axis=1)
        return below

    def log_odds(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """(C - 1,) log of the counts below the left child of each inner node over the right."""
        log = np.log(self.below(counts)[self.down])
        odds: NDArray[np.float64] = log[:, 0] - log[:, 1]
        return odds

    def mean_depth(self, counts: NDArray[np.int64]) -> float:
        """Nodes on the path to a class, averaged by `counts` (C,)."""
        return float(self.below(counts)[: len(self.down)].sum() / counts.sum())


def huffman_tree(counts: NDArray[np.int64]) -> Tree:
    """The tree with the shortest mean path by `counts` (C,), in O(C log C).

    Merged nodes are created by ascending count, so two sorted queues replace a heap. Among equal
    counts classes come before nodes, and lower ids first: the tree is deterministic and as flat
    as possible.
    """
    num_nodes = len(counts) - 1
    order = np.argsort(counts, kind="stable")
    leaves = [*counts[order].tolist(), 2**63]  # sentinel, larger than any count
    merged: list[int] = []
    pairs: list[int] = []  # index of a leaf in `order`, or C + index of a merged node
    leaf = node = 0
    for count in range(num_nodes):
        total = 0
        for _ in range(2):
            if node == count or leaves[leaf] <= merged[node]:
                total += leaves[leaf]
                pairs.append(leaf)
                leaf += 1
            else:
                total += merged[node]
                pairs.append(num_nodes + 1 + node)
                node += 1
        merged.append(total)
    place = np.array(pairs, np.int64).reshape(num_nodes, 2)[::-1]  # the root was merged last
    is_leaf = place <= num_nodes
    down = np.where(is_leaf, num_nodes + order[np.minimum(place, num_nodes)], 2 * num_nodes - place)
    up = np.full(2 * num_nodes + 1, -1, np.int64)
    up[down.reshape(-1)] = np.arange(2 * num_nodes)
    return Tree(np.ascontiguousarray(down), up)
