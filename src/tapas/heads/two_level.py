"""Two-level softmax (Goodman 2001): first the cluster of a class, then the class in it.

    p(y | q) = p(cluster of y | q) * p(y | cluster of y, q)

Both are softmaxes, the first over all clusters, the second over the classes of one cluster. With
about sqrt(C) clusters of about sqrt(C) classes a target needs O(sqrt(C)) scores.

Clusters are made by frequency (Mikolov et al. 2011): classes are sorted by descending count and cut
into clusters of equal mass, so that frequent classes are in small clusters.
"""

import math
from typing import ClassVar, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.candidates import Candidates, first_occurrences
from tapas.errors import UsageError
from tapas.heads.facts import Option, Options
from tapas.heads.tree import Counts, TreeHead, TreeOptions, check_counts
from tapas.heads.tree_search import topk_in_cluster, topk_over_clusters
from tapas.losses.grouped_softmax import grouped_softmax_costs
from tapas.shapes import check_positive
from tapas.tables.ranks import GlobalBatch

LARGEST = 4  # times the mean size; larger clusters are cut further


class TwoLevelSoftmax(TreeHead):
    """A softmax over clusters and one over the classes of the target's cluster.

    Args:
        counts: (C,) how often each class was seen; ids may be in any order.
        num_clusters: approximate number of clusters; sqrt(C) if left out. There are more where
            clusters above 4 times the mean size are cut, and fewer where the mass of one class
            is that of several clusters.
        options: `row_optimizer`, `bias`, `seed` and so on; see `TreeHead`. Biases start at
            log(count + 1), that of a cluster at the log of the sum over its classes.
    """

    method = "two-level"
    title = "Hierarchical softmax, two levels"
    paper = "Goodman 2001"
    bibtex = ("goodman2001classes", "mikolov2011extensions")
    options: ClassVar[Options] = {
        "num_clusters": Option(
            None,
            int,
            low=1,
            help="approximate number of clusters; default: the square root of the classes",
        ),
    }

    cluster_of: Tensor  # (C,) by class
    place_of: Tensor  # (C,) row of each class: by cluster, then by ascending id
    class_at: Tensor  # (C,) the inverse
    first: Tensor  # (G + 1,) first row of each cluster

    def __init__(
        self,
        counts: Counts,
        dim: int,
        *,
        num_clusters: int | None = None,
        **options: Unpack[TreeOptions],
    ):
        seen = check_counts(counts)
        super().__init__(len(seen), dim, **options)
        wanted = round(math.sqrt(len(seen))) if num_clusters is None else num_clusters
        if check_positive("num_clusters", wanted) > len(seen):
            raise UsageError(
                f"num_clusters is {wanted}, but there are only {len(seen)} classes. Leave it out "
                "for the square root of that."
            )
        cluster_of = by_frequency(seen, wanted)
        class_at = np.argsort(cluster_of, kind="stable")
        sizes = np.bincount(cluster_of)
        self._register_layout(
            cluster_of=cluster_of,
            place_of=np.argsort(class_at),
            class_at=class_at,
            first=np.concatenate([[0], sizes.cumsum()]),
        )
        mass = np.bincount(cluster_of, weights=seen + 1.0)
        self.clusters = self._table("clusters", mass, dim)  # (G, D)
        self.classes = self._table("classes", seen[class_at] + 1.0, dim)  # (C, D) at `place_of`
        weighed = seen if seen.any() else seen + 1
        self._mean_cluster = float((weighed * sizes[cluster_of]).sum() / weighed.sum())

    @property
    def num_clusters(self) -> int:
        return self.clusters.num_classes

    @property
    def scores_per_example(self) -> float:
        """All clusters, and the classes in the cluster of the target, averaged by counts."""
        return self.num_clusters + self._mean_cluster

    @property
    def device(self) -> torch.device:
        return self.classes.device

    def layout(self) -> Tensor:
        return self.cluster_of

    def neg_log_prob(self, query: Tensor, target: Tensor) -> Tensor:
        real = target >= 0
        cluster = self.cluster_of[target.clamp(min=0)].masked_fill(~real, -1)
        counted = first_occurrences(cluster) & real  # two targets may share a cluster
        kept = Candidates.every(self.num_clusters, self.device)
        first = self.clusters.sampled_costs(
            GlobalBatch.local(query, cluster), kept, counted=counted
        )
        example, column = real.nonzero(as_tuple=True)
        second = self._inside(query, example, cluster[example, column], target[example, column])
        return first.index_put((example, column), second, accumulate=True)

    def _inside(self, query: Tensor, example: Tensor, cluster: Tensor, ids: Tensor) -> Tensor:
        """(P,) -log p(class | cluster) of classes `ids` (P,) for the queries at `example` (P,)."""
        cluster, order = cluster.sort()
        visited, num_targets = torch.unique_consecutive(cluster, return_counts=True)
        first = self.first[visited]
        num_rows = self.first[visited + 1] - first
        shift = (first - num_rows.cumsum(0) + num_rows).repeat_interleave(num_rows)
        ids_inside = torch.arange(len(shift), device=shift.device) + shift
        rows, bias = self.classes.lookup(ids_inside, return_bias=True)
        position = self.place_of[ids[order]] - self.first[cluster]
        cost = grouped_softmax_costs(
            query.index_select(0, example[order]),
            rows,
            bias,
            position,
            num_targets=num_targets.tolist(),
            num_rows=num_rows.tolist(),
        )
        return torch.empty_like(cost).index_copy(0, order, cost)

    def _topk(self, query: Tensor, k: int, exclude: Tensor) -> tuple[Tensor, Tensor]:
        """Clusters by descending probability, until none can have a better class."""
        weight, bias = self.clusters.rows(torch.arange(self.num_clusters, device=self.device))
        bound = (query @ weight.t() + bias).log_softmax(dim=1)
        banned = torch.where(exclude >= 0, self.place_of[exclude.clamp(min=0)], -1)

        def search(g: int, who: Tensor) -> tuple[Tensor, Tensor]:
            first, last = int(self.first[g]), int(self.first[g + 1])
            return topk_in_cluster(
                self.classes, first, last, query[who], bound[who, g], k,
                exclude=banned[who], ids=self.class_at,
            )  # fmt: skip

        return topk_over_clusters(bound, search, k)

    def extra_repr(self) -> str:
        return f"{self.num_clusters} clusters"


def by_frequency(counts: NDArray[np.int64], num_clusters: int) -> NDArray[np.int64]:
    """(C,) cluster of each class: classes by descending count, cut into clusters of equal mass.

    Clusters of more than `LARGEST` times the mean size are cut into equal ones.
    """
    order = np.argsort(-counts, kind="stable")
    mass = counts[order] + 1.0
    piece = ((mass.cumsum() - mass) * (num_clusters / mass.sum())).astype(np.int64)
    _, piece, sizes = np.unique(piece, return_inverse=True, return_counts=True)
    most = LARGEST * -(-len(counts) // num_clusters)
    parts = -(-sizes // most)
    inside = np.arange(len(counts)) - (sizes.cumsum() - sizes)[piece]
    cut = inside * parts[piece] // sizes[piece]
    cluster_of = np.empty_like(order)
    cluster_of[order] = (parts.cumsum() - parts)[piece] + cut
    return cluster_of
