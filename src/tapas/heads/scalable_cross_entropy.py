"""Scalable Cross-Entropy (Mezentsev, Gusak, Oseledets, Frolov 2024): softmax within buckets.

    U = Omega Q               n_b directions, random mixtures of the batch's queries
    queries of bucket j       the b_x queries with the largest u_j . q_b
    classes of bucket j       the b_y classes with the largest u_j . row_c (+ bias_c)
    loss_bj = log( exp(s_by) + sum over c in bucket j of exp(s_bc) ) - s_by
    loss_b  = max over the buckets j of b of loss_bj

A query and a class that both point in the direction of u_j are likely to have a large logit, so
the buckets have most large logits of the batch and few others. The classes of a bucket are found
exactly, among all C. A query in no bucket has a loss of 0, and the rows of its targets get no
gradient. The published code takes the mean over the queries in buckets; here it is over all
examples, as in every head.
"""

from math import ceil, sqrt
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from tapas.heads.batch import Batch
from tapas.heads.facts import Option, Options
from tapas.heads.flat import FlatOptions, LookupHead
from tapas.losses import sampled_softmax_loss
from tapas.losses.hard_negatives import log_sum_without, positive_logits
from tapas.shapes import check_positive

BUCKETS_PER_ROOT = 2.0  # n_b = b_x = 2 * sqrt(B): on average an example is in four buckets


class ScalableCrossEntropy(LookupHead):
    """Softmax cross-entropy over buckets of queries and classes with the same direction.

    Args:
        num_buckets: n_b; 2 * sqrt(B) if left out.
        bucket_queries: b_x, queries of a bucket; 2 * sqrt(B) if left out. At most B are used.
        bucket_classes: b_y, classes of a bucket. At most num_classes are used.
        options: `table`, `row_optimizer`, `bias`, `seed` and so on; see `FlatHead`.
    """

    method = "sce"
    title = "Scalable cross-entropy"
    paper = "Mezentsev et al. 2024"
    bibtex = ("mezentsev2024scalable",)
    options: ClassVar[Options] = {
        "bucket_classes": Option(256, int, low=1, help="classes of a bucket"),
    }
    learns_from_batch = True
    targets_softmax = False

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        num_buckets: int | None = None,
        bucket_queries: int | None = None,
        bucket_classes: int = 256,
        **options: Unpack[FlatOptions],
    ):
        super().__init__(num_classes, dim, **options)
        for name, value in (("num_buckets", num_buckets), ("bucket_queries", bucket_queries)):
            if value is not None:
                check_positive(name, value)
        self.num_buckets, self.bucket_queries = num_buckets, bucket_queries
        self.bucket_classes = check_positive("bucket_classes", bucket_classes)

    def losses(self, batch: Batch, context: Tensor | None) -> Tensor:
        members, classes = self._buckets(batch.query.detach())
        if len(members):  # the search for the classes of buckets scores all classes
            inside = members.numel() * classes.shape[1]
            self._count_scores((len(classes) * self.num_classes + inside) / len(batch.query))
        examples, slot = torch.unique(members, return_inverse=True)
        target = batch.target[examples]
        targets = target[target >= 0]
        split = len(targets)
        weight, bias = self.table.lookup(
            torch.cat([targets, classes.reshape(-1)]), return_bias=True
        )
        query = batch.query.index_select(0, examples)
        positive = positive_logits(query, target, weight[:split], bias[:split])
        logit = torch.baddbmm(
            bias[split:].view(*classes.shape)[:, None, :],
            query.index_select(0, slot.view(-1)).view(*members.shape, self.dim),
            weight[split:].view(*classes.shape, self.dim).transpose(1, 2),
        )
        in_bucket = log_sum_without(logit, among(classes, target[slot]))
        # the loss increases with the sum, so the largest sum gives the largest loss
        log_sum = in_bucket.new_full((len(examples),), -torch.inf).scatter_reduce(
            0, slot.view(-1), in_bucket.view(-1), "amax"
        )
        share = None if batch.weight is None else batch.weight[examples]
        counted = None if batch.counted is None else batch.counted[examples]
        loss = sampled_softmax_loss(positive, log_sum, share, counted)
        return batch.query.new_zeros(len(batch.query)).index_copy(0, examples, loss)

    @torch.no_grad()
    def _buckets(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Of each bucket: positions in `query` (B, D), (n_b, b_x), and class ids, (n_b, b_y)."""
        size = len(query)
        root = ceil(BUCKETS_PER_ROOT * sqrt(size))
        num_buckets = (self.num_buckets or root) if size else 0
        mixture = torch.randn(
            num_buckets, size, generator=self._draws(), dtype=torch.float32, device="cpu"
        )
        direction = mixture.to(query.device) @ query
        members = (direction @ query.t()).topk(min(self.bucket_queries or root, size)).indices
        # scaled to the mean length of a query, so that biases count as much as in its logits
        length = direction.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        mean_length = query.norm(dim=1).mean() if size else query.new_zeros(())
        num_classes = min(self.bucket_classes, self.num_classes)
        return members, self.table.topk(direction * (mean_length / length), num_classes)[1]

    def extra_repr(self) -> str:
        names = ("num_buckets", "bucket_queries", "bucket_classes")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def among(classes: Tensor, target: Tensor) -> Tensor:
    """(N, X, Y) whether `classes` (N, Y) of a bucket are in `target` (N, X, L) of its queries."""
    found = torch.zeros(*target.shape[:2], classes.shape[1], dtype=torch.bool, device=target.device)
    for column in target.unbind(dim=2):  # one target at a time: no (N, X, Y, L) matrix
        found |= column[:, :, None] == classes[:, None, :]
    return found
