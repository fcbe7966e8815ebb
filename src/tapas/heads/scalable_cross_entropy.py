"""Scalable Cross-Entropy (Mezentsev, Gusak, Oseledets, Frolov 2024): softmax inside of buckets.

    U = Omega Q               n_b directions, random mixtures of the batch's queries
    queries of bucket j       the b_x queries with the largest u_j . q_b
    classes of bucket j       the b_y classes with the largest u_j . row_c (+ bias_c)
    loss_bj = log( exp(s_by) + sum over c in bucket j of exp(s_bc) ) - s_by
    loss_b  = max over the buckets j of b of loss_bj

Where a query and a class both lie in the direction of u_j their logit is likely to be large,
so the buckets hold the large logits of the batch at a small part of their number. The classes
of a bucket are found exactly, among all C. A query in no bucket has no loss, and the rows of
its targets are not touched. Published code takes the mean over the queries in buckets; here
it is over all examples, as for every head.
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

BUCKETS_PER_ROOT = 2.0  # n_b = b_x = 2 * sqrt(B): four places in buckets for each example


class ScalableCrossEntropy(LookupHead):
    """Softmax cross-entropy over the classes of random buckets, the nearest to their queries.

    Args:
        num_buckets: n_b; 2 * sqrt(B) when left out.
        bucket_queries: b_x, at most all of a batch; 2 * sqrt(B) when left out.
        bucket_classes: b_y, at most all.
    """

    method = "sce"
    title = "Scalable cross-entropy"
    paper = "Mezentsev et al. 2024"
    bibtex = ("mezentsev2024scalable",)
    options: ClassVar[Options] = {
        "bucket_classes": Option(256, int, low=1, help="classes of a bucket, the nearest of all"),
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
        if len(members):  # with the search for the classes of buckets, which looks at all
            inside = members.numel() * classes.shape[1]
            self._count_scores((len(classes) * self.num_classes + inside) / len(batch.query))
        places, slot = torch.unique(members, return_inverse=True)
        target = batch.target[places]
        own = target[target >= 0]
        weight, bias = self.table.lookup(torch.cat([own, classes.reshape(-1)]), return_bias=True)
        query = batch.query.index_select(0, places)
        positive = positive_logits(query, target, weight[: len(own)], bias[: len(own)])
        logit = torch.baddbmm(
            bias[len(own) :].view(*classes.shape)[:, None, :],
            query.index_select(0, slot.view(-1)).view(*members.shape, self.dim),
            weight[len(own) :].view(*classes.shape, self.dim).transpose(1, 2),
        )
        in_bucket = log_sum_without(logit, among(classes, target[slot]))
        # the loss rises with the sum, so the largest sum is the largest loss
        log_sum = in_bucket.new_full((len(places),), -torch.inf).scatter_reduce(
            0, slot.view(-1), in_bucket.view(-1), "amax"
        )
        share = None if batch.weight is None else batch.weight[places]
        counted = None if batch.counted is None else batch.counted[places]
        loss = sampled_softmax_loss(positive, log_sum, share, counted)
        return batch.query.new_zeros(len(batch.query)).index_copy(0, places, loss)

    @torch.no_grad()
    def _buckets(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Places in `query` (B, D), (n_b, b_x), and ids of classes, (n_b, b_y), of each bucket."""
        size = len(query)
        root = ceil(BUCKETS_PER_ROOT * sqrt(size))
        num_buckets = (self.num_buckets or root) if size else 0
        mixture = torch.randn(
            num_buckets, size, generator=self._draws(), dtype=torch.float32, device="cpu"
        )
        direction = mixture.to(query.device) @ query
        members = (direction @ query.t()).topk(min(self.bucket_queries or root, size)).indices
        # as long as a query is, or biases would count for too much or too little beside it
        length = direction.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        usual = query.norm(dim=1).mean() if size else query.new_zeros(())
        num_classes = min(self.bucket_classes, self.num_classes)
        return members, self.table.topk(direction * (usual / length), num_classes)[1]

    def extra_repr(self) -> str:
        names = ("num_buckets", "bucket_queries", "bucket_classes")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def among(classes: Tensor, target: Tensor) -> Tensor:
    """(N, X, Y) whether `classes` (N, Y) are among `target` (N, X, L) of a bucket's members."""
    found = torch.zeros(*target.shape[:2], classes.shape[1], dtype=torch.bool, device=target.device)
    for column in target.unbind(dim=2):  # one target at a time: no (N, X, Y, L) matrix
        found |= column[:, :, None] == classes[:, None, :]
    return found
