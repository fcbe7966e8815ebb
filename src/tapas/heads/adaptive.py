"""Adaptive softmax (Grave et al. 2017): rare classes are in tails of fewer dimensions.

    p(y | q) = p_head(y | q)                                    if y is frequent
             = p_head(token_i | q) * p_i(y | proj_i q)          if y is in tail i

p_head is a softmax over the frequent classes and one token for each tail; p_i is a softmax over
the classes of tail i, in max(1, D // div^(i+1)) dimensions. Most examples need only the head.

Gives the same numbers as torch.nn.AdaptiveLogSoftmaxWithLoss with the same weights, but ids may be
in any order, examples may have several targets, and tails without a target are not computed.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise
from operator import index
from typing import Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tapas.candidates import Candidates, first_occurrences
from tapas.errors import UsageError
from tapas.heads.tree import Counts, TreeHead, TreeOptions, check_counts
from tapas.heads.tree_search import topk_in_cluster, topk_over_clusters
from tapas.rng import stream
from tapas.shapes import number
from tapas.tables import LocalTable
from tapas.tables.exhaustive import log_sum_rows
from tapas.tables.ranks import GlobalBatch

MOST_TAILS = 3  # of the default cutoffs; the paper gains little from more
PER_SCORE = 32  # cost of a score beside its dot product, in multiplications
SMALLEST_TAIL = 4  # dimensions that a tail of the default cutoffs has at least


class AdaptiveSoftmax(TreeHead):
    """A softmax over the frequent classes, and one over each tail of rarer classes.

    Args:
        counts: (C,) how often each class was seen; ids may be in any order.
        cutoffs: increasing integers from 1 to C - 1: the head has the `cutoffs[0]` most frequent
            classes, tail i the next ones up to number cutoffs[i + 1]. If left out, those with
            the least cost on average, see `cheapest_cutoffs`.
        div_value: factor by which the dimension shrinks from one tail to the next.
        options: `row_optimizer`, `bias`, `seed` and so on; see `TreeHead`. Biases start at
            log(count + 1), that of a tail's token at the log of the sum over its classes.

    An optimizer of `tapas.optim` moves the rows. The projections `proj.0`, ... are ordinary
    parameters: pass them to the optimizer of the encoder.
    """

    method = "adaptive"
    title = "Adaptive softmax"
    paper = "Grave et al. 2017"
    bibtex = ("grave2017efficient",)

    cluster_of: Tensor  # (C,) 0 for the head, 1 + i for tail i
    place_of: Tensor  # (C,) row in the table of that cluster, ascending with the id
    class_at: Tensor  # (C,) classes of the head, then of each tail, by ascending id

    def __init__(
        self,
        counts: Counts,
        dim: int,
        *,
        cutoffs: Sequence[int] | None = None,
        div_value: float = 4.0,
        **options: Unpack[TreeOptions],
    ):
        seen = check_counts(counts)
        super().__init__(len(seen), dim, **options)
        if not 1 <= number(div_value) < np.inf:
            raise UsageError(f"div_value must be a finite number of at least 1, got {div_value!r}.")
        self.div_value = float(div_value)
        falling = np.argsort(-seen, kind="stable")
        if cutoffs is None:
            cutoffs = cheapest_cutoffs(seen[falling], dim, self.div_value)
        self.cutoffs = check_cutoffs(cutoffs, len(seen))
        ordered = [np.sort(ids) for ids in np.split(falling, self.cutoffs)]
        cluster_of, place_of = np.empty_like(falling), np.empty_like(falling)
        for cluster, ids in enumerate(ordered):
            cluster_of[ids], place_of[ids] = cluster, np.arange(len(ids))
        self._register_layout(
            cluster_of=cluster_of, place_of=place_of, class_at=np.concatenate(ordered)
        )
        masses = [seen[ids] + 1.0 for ids in ordered]
        tokens = np.array([mass.sum() for mass in masses[1:]], np.float64)
        self.head = self._table("head", np.concatenate([masses[0], tokens]), dim)
        widths = [tail_dim(dim, self.div_value, i) for i in range(len(tokens))]
        self.tails = nn.ModuleList(
            self._table(f"tail {i}", masses[1 + i], widths[i]) for i in range(len(tokens))
        )
        self.proj = nn.ParameterList(
            nn.Parameter(draw_projection(width, dim, self.seed, i).to(self._device))
            for i, width in enumerate(widths)
        )
        sizes = np.array([0, *(len(ids) for ids in ordered[1:])])
        weighed = seen if seen.any() else seen + 1
        self._mean_tail = float((weighed * sizes[cluster_of]).sum() / weighed.sum())

    @property
    def scores_per_example(self) -> float:
        """All rows of the head, and the tail of the target, averaged by counts."""
        return self.head.num_classes + self._mean_tail

    @property
    def device(self) -> torch.device:
        return self.head.device

    def layout(self) -> Tensor:
        return self.cluster_of

    def neg_log_prob(self, query: Tensor, target: Tensor) -> Tensor:
        real = target >= 0
        ids = target.clamp(min=0)
        cluster, place = self.cluster_of[ids].masked_fill(~real, -1), self.place_of[ids]
        token = self.cutoffs[0] + cluster - 1
        in_head = torch.where(cluster > 0, token, place).masked_fill(~real, -1)
        cost = _softmax_costs(self.head, query, in_head)
        for i in range(len(self.tails)):
            here = cluster == 1 + i
            who = here.any(dim=1).nonzero()[:, 0]
            if not len(who):  # a gradient of 0, for which DistributedDataParallel waits
                nothing = self.proj[i].sum() + self._tail(i).gradients.anchor.sum()
                cost = cost + 0.0 * nothing
            else:
                target_row = place[who].masked_fill(~here[who], -1)
                small = self._project(query.index_select(0, who), i)
                cost = cost.index_add(0, who, _softmax_costs(self._tail(i), small, target_row))
        return cost

    def _project(self, query: Tensor, i: int) -> Tensor:
        return torch.mm(query, self.proj[i].float().t())

    def _tail(self, i: int) -> LocalTable:
        return cast(LocalTable, self.tails[i])

    def _topk(self, query: Tensor, k: int, exclude: Tensor) -> tuple[Tensor, Tensor]:
        """Head and tails by descending probability, as long as one may have a better class."""
        n = self.cutoffs[0]
        weight, bias = self.head.rows(torch.arange(self.head.num_classes, device=self.device))
        frequent = log_sum_rows(weight[:n], bias[:n], query)
        tokens = query @ weight[n:].t() + bias[n:]
        bound = torch.cat([frequent[:, None], tokens], dim=1).log_softmax(dim=1)
        ids = exclude.clamp(min=0)
        cluster, place = self.cluster_of[ids].masked_fill(exclude < 0, -1), self.place_of[ids]
        classes = self.class_at.tensor_split(self.cutoffs)

        def search(g: int, who: Tensor) -> tuple[Tensor, Tensor]:
            table = self.head if g == 0 else self._tail(g - 1)
            small = query[who] if g == 0 else self._project(query[who], g - 1)
            return topk_in_cluster(
                table, 0, len(classes[g]), small, bound[who, g], k,
                exclude=place[who].masked_fill(cluster[who] != g, -1), ids=classes[g],
            )  # fmt: skip

        return topk_over_clusters(bound, search, k)

    def extra_repr(self) -> str:
        return f"cutoffs={self.cutoffs}, div_value={self.div_value:g}"


def _softmax_costs(table: LocalTable, query: Tensor, target: Tensor) -> Tensor:
    """(B, L) -log p of `target` (B, L) in a softmax over all rows of `table`; 0 for padding, -1."""
    kept = Candidates.every(table.num_classes, table.device)
    counted = first_occurrences(target) & (target >= 0)
    return table.sampled_costs(GlobalBatch.local(query, target), kept, counted=counted)


def tail_dim(dim: int, div_value: float, i: int) -> int:
    """Dimensions of tail i."""
    return max(1, int(dim // div_value ** (i + 1)))


def draw_projection(width: int, dim: int, seed: int, i: int) -> Tensor:
    """(width, D) initial values, distributed as those of nn.Linear."""
    bound = dim**-0.5
    start = torch.empty(width, dim, dtype=torch.float32, device="cpu")
    return start.uniform_(-bound, bound, generator=stream(seed, "proj", i))


def cheapest_cutoffs(counts: NDArray[np.int64], dim: int, div_value: float) -> list[int]:
    """The cutoffs, powers of 2, with the least cost of a target, averaged by counts.

        (D + e) * (head + tails) + sum_i share_i * ( (d_i + e) * size_i + D * d_i )

    is the cost in multiplications; e is the cost of a score beside its dot product. `counts` (C,)
    must be descending. There are up to 3 tails, each of at least 4 dimensions, and at least one.
    """
    num_classes = len(counts)
    seen_before = np.concatenate([[0.0], (counts + 1.0).cumsum()])
    share = seen_before / seen_before[-1]
    widths = [tail_dim(dim, div_value, i) for i in range(MOST_TAILS)]
    most = max(1, sum(width >= SMALLEST_TAIL for width in widths))
    grid = [
        1 << power for power in range((num_classes - 1).bit_length()) if 1 << power < num_classes
    ]

    def cost(cuts: tuple[int, ...]) -> float:
        total = float((dim + PER_SCORE) * (cuts[0] + len(cuts)))
        for width, (start, stop) in zip(widths, pairwise([*cuts, num_classes]), strict=False):
            mine = (width + PER_SCORE) * (stop - start) + dim * width
            total += float(share[stop] - share[start]) * mine
        return total

    tried = [cuts for tails in range(1, most + 1) for cuts in combinations(grid, tails)]
    return list(tried[int(np.argmin([cost(cuts) for cuts in tried]))])


def check_cutoffs(cutoffs: Sequence[int], num_classes: int) -> list[int]:
    try:
        given = [index(cut) for cut in cutoffs]
    except TypeError:
        given = []
    if not given or any(a >= b for a, b in pairwise([0, *given, num_classes])):
        raise UsageError(
            f"cutoffs must be increasing integers from 1 to {num_classes - 1}, one less than the "
            f"number of classes, got {cutoffs!r}. Leave them out for the cheapest cutoffs."
        )
    return given
