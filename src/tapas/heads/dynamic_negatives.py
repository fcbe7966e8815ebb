"""Dynamic negative sampling (Zhang et al. 2013; Rendle and Freudenthaler 2014), with a softmax.

For each batch draw a pool of r*n classes from Q; every example keeps the n classes that it
scores highest, without its targets:

    loss_b = log( exp(s_by) + sum over k in top_n(pool, b) of exp(s_bk) ) - s_by

Biased on purpose: there is no correction for how classes were drawn or kept, so the gradient
goes to the classes with the highest scores, and classes that no example scores high are never
pushed down. TAPAS keeps one set of classes for the batch; its rule "priority" corrects for that.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from tapas.candidates import mask_hits
from tapas.heads.batch import Batch
from tapas.heads.facts import UNIFORM_FIRST, Option, Options, drawn_options
from tapas.heads.flat import FlatOptions, LookupHead, build_proposal
from tapas.losses import sampled_softmax_loss
from tapas.losses.hard_negatives import log_sum_without, positive_logits
from tapas.proposals import Proposal, Uniform
from tapas.proposals.squashed import SparseCounts
from tapas.shapes import check_positive, check_samples

MOST_KEPT = 64  # default for the classes that an example keeps, at most
SCORES_AT_ONCE = 1 << 24  # entries of a block of the (B, pool) scores


class DynamicNegatives(LookupHead):
    """Each example keeps the classes of a pool that it scores highest.

    Args:
        num_samples: n, classes that an example keeps.
        presample_factor: r; the pool has min(r*n, num_classes) classes. 1 keeps all of it.
        counts, proposal: Q, as in `SampledSoftmax`; uniform if left out, as in the paper.
        options: `table`, `row_optimizer`, `bias`, `seed` and so on; see `FlatHead`.

    The rows of the pool are looked up at once; those that no example keeps get a gradient of 0.
    """

    method = "dynamic-negatives"
    title = "Dynamic negative sampling"
    paper = "Zhang et al. 2013"
    bibtex = ("zhang2013optimizing", "rendle2014improving")
    options: ClassVar[Options] = {
        **drawn_options(UNIFORM_FIRST),
        "num_samples": Option(
            None, int, low=1, help="n, classes that an example keeps; default: at most 64"
        ),
        "presample_factor": Option(
            None,
            int,
            low=1,
            help="r; default: r*n is 1,000, or an eighth of the classes if that is less",
        ),
    }
    targets_softmax = False

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        num_samples: int = 64,
        presample_factor: int = 16,
        counts: "SparseCounts | None" = None,
        proposal: Proposal | None = None,
        **options: Unpack[FlatOptions],
    ):
        super().__init__(num_classes, dim, **options)
        self.num_samples = check_samples(num_samples, self.num_classes)
        self.presample_factor = check_positive("presample_factor", presample_factor)
        self.proposal = build_proposal(proposal, counts, self.num_classes)

    @classmethod
    def sample_options(cls, num_samples: int) -> dict[str, int]:
        """A pool of `num_samples`, of which an eighth is kept, at most 64."""
        kept = min(MOST_KEPT, max(1, num_samples // 8))
        return {"num_samples": kept, "presample_factor": num_samples // kept}

    @classmethod
    def rows_per_step(cls, options: Mapping[str, Any], num_classes: int) -> tuple[int, int]:
        return (options["num_samples"] or 1) * (options["presample_factor"] or 1), 1

    @property
    def scores_per_example(self) -> float:
        return self._pool_size

    @property
    def _pool_size(self) -> int:
        return min(self.presample_factor * self.num_samples, self.num_classes)

    def losses(self, batch: Batch, context: Tensor | None) -> Tensor:
        query, target = batch.query, batch.target
        # a rank without examples has no context; it draws uniformly and uses nothing of it
        proposal = (
            self.proposal.conditioned_on(context) if len(query) else Uniform(self.num_classes)
        )
        pool = proposal.sample(self._pool_size, generator=self._draws()).ids.to(target.device)
        targets = target[target >= 0]
        split = len(targets)
        weight, bias = self.table.lookup(torch.cat([targets, pool]), return_bias=True)
        positive = positive_logits(query, target, weight[:split], bias[:split])
        size = max(1, SCORES_AT_ONCE // len(pool))
        log_sum = [
            self._hardest(queries, weight[split:], bias[split:], pool, theirs)
            for queries, theirs in zip(
                torch.split(query, size), torch.split(target, size), strict=True
            )
        ]
        return sampled_softmax_loss(positive, torch.cat(log_sum), batch.weight, batch.counted)

    def _hardest(
        self, query: Tensor, weight: Tensor, bias: Tensor, pool: Tensor, target: Tensor
    ) -> Tensor:
        """(B,) log of the sum over the classes that each query keeps of the pool's rows (K, D)."""
        logit = torch.addmm(bias, query, weight.t())
        score = logit.detach().clone()
        mask_hits(score, pool, target)
        kept = score.topk(self.num_samples, dim=1, sorted=False)
        return log_sum_without(logit.gather(1, kept.indices), kept.values.isneginf())

    def extra_repr(self) -> str:
        return (
            f"num_samples={self.num_samples}, presample_factor={self.presample_factor}, "
            f"proposal={self.proposal!r}"
        )
