"""Adaptive importance sampling (Bengio and Senécal 2008): the proposal Q follows the model.

    loss_b = log( exp(s_by) + sum_k exp(s_bk - log pi_k) ) - s_by        k drawn from Q_t
    w_bk   = exp(s_bk - log pi_k)                     importance weights, without targets of b
    p_bk   = w_bk / sum_j w_bj                        estimates the model: Q_t moves towards it
    ESS_b  = (sum_k w_bk)^2 / sum_k (1 - pi_k) w_bk^2, at most the number drawn

Q_t is a mixture of uniform, unigram and bigram (of the previous class, `context`); without
context or pairs, of the first two. The effective sample size (ESS) decides how many classes are
drawn. pi_k is the probability of class k to be drawn: a class that is drawn for certain adds
nothing to the variance. If all pi_k are small, this is the ESS of the paper.

The paper draws blocks until the ESS of the present sample is large enough, which favours samples
of large ESS. Here Q_t and the number of draws depend on earlier steps only, so that expected
counts are exact and the estimate of the partition sum is unbiased.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from tapas.candidates import Candidates, mask_hits
from tapas.errors import DataError, UsageError
from tapas.heads.facts import NUM_SAMPLES, BuildContext, Option, Options
from tapas.heads.flat import FlatOptions, SharedSample
from tapas.proposals.ngram_mixture import NgramMixture
from tapas.shapes import check_positive, check_samples, number
from tapas.tables.ranks import GlobalBatch

SCORING = 64  # examples of a batch that Q learns from


class AdaptiveImportance(SharedSample):
    """Sampled softmax with a proposal that adapts to the model.

    Args:
        num_samples: the most classes that a batch draws; the first batches draw as many.
        min_ess: effective sample size to reach; a quarter of `num_samples` if left out.
        counts: (C,) how often each class was seen: the initial unigram.
        pairs: (previous, following, counts), (N,) each: the initial bigram; other pairs are
            never added. With it every batch needs its `context`.
        rate: learning rate of Q.
        refresh_every: Q and the number of draws change every so many steps, in O(C + pairs);
            the number at most doubles or halves.
        options: `table`, `row_optimizer`, `bias`, `seed` and so on; see `FlatHead`.

    Memory is O(C + pairs). Up to 64 examples of each batch score the sample a second time, for Q
    to learn from. Ranks compute the same Q from the same numbers, and check that it is equal.
    """

    method = "adaptive-importance"
    title = "Adaptive importance sampling"
    paper = "Bengio, Senécal 2008"
    bibtex = ("bengio2008adaptive",)
    options: ClassVar[Options] = {
        "num_samples": NUM_SAMPLES,
        "min_ess": Option(
            50.0, float, low=1, high=1e9, help="effective sample size of a batch to reach"
        ),
    }
    reads = frozenset({"counts", "pairs"})
    learns_state = True
    learns_from_batch = True

    num_drawn: Tensor  # () how many classes a step draws at present
    ess_heard: Tensor  # (2,) sum over steps since the last refresh of the mean ESS, and steps

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        num_samples: int,
        min_ess: float | None = None,
        counts: Tensor | None = None,
        pairs: tuple[Tensor, Tensor, Tensor] | None = None,
        rate: float = 0.01,
        refresh_every: int = 32,
        **options: Unpack[FlatOptions],
    ):
        super().__init__(num_classes, dim, **options)
        self.num_samples = check_samples(num_samples, self.num_classes)
        self.min_ess = max(num_samples / 4, 1.0) if min_ess is None else float(number(min_ess))
        if not 1 <= self.min_ess <= num_samples:
            raise UsageError(
                f"min_ess must be between 1 and num_samples ({num_samples}), got {min_ess!r}: the "
                "effective sample size cannot exceed the draws. Raise num_samples or lower min_ess."
            )
        if not 0 < number(rate) <= 1:
            raise UsageError(f"rate must be above 0 and at most 1, got {rate!r}. Try 0.01.")
        self.refresh_every = check_positive("refresh_every", refresh_every)
        self.ngrams = NgramMixture(
            self.num_classes, counts=counts, pairs=pairs, rate=float(rate), device=self.table.device
        )
        self.register_buffer("num_drawn", torch.tensor(self.num_samples, device=self.table.device))
        self.register_buffer(
            "ess_heard", torch.zeros(2, dtype=torch.float64, device=self.table.device)
        )

    @classmethod
    def arguments(cls, options: Mapping[str, Any], context: BuildContext) -> dict[str, Any]:
        given = super().arguments(options, context)
        given["min_ess"] = min(given["min_ess"], given["num_samples"])
        return given

    @property
    def wants_context(self) -> bool:
        return self.ngrams.wants_context

    def candidates(self, batch: GlobalBatch) -> Candidates:
        proposal = self.ngrams.conditioned_on(batch.context)
        return proposal.sample(int(self.num_drawn), generator=self._draws())

    def _costs(
        self, batch: GlobalBatch, counted: Tensor | None, factor: float | None = None
    ) -> Tensor:
        with torch.no_grad():
            kept = self.candidates(batch).to(self.table.device)
        self._count_scores(len(kept) * (1 + min(1.0, SCORING / len(batch.query))))
        if self._is_training():
            self._adapt(batch, kept)
        return self.table.sampled_costs(batch, kept, counted=counted, factor=factor)

    @torch.no_grad()
    def _adapt(self, batch: GlobalBatch, kept: Candidates) -> None:
        """Let Q observe the model's probabilities of the sample; refresh it every so many steps."""
        size = len(batch.query)
        few = min(size, SCORING)
        chosen = torch.arange(few, device=batch.query.device) * size // few  # the same on all ranks
        share = self._shares(batch.query[chosen], batch.target[chosen], kept)
        context = None if batch.context is None else batch.context[chosen]
        self.ngrams.observe(kept.ids, share, context)
        variance = share.square() @ -torch.expm1(kept.log_q)  # (A,) relative variance of each sum
        self.ess_heard[0] += float(variance.reciprocal().clamp(max=len(kept)).mean())
        self.ess_heard[1] += 1
        if (self.step + 1) % self.refresh_every == 0:
            self._refresh()

    def _shares(self, query: Tensor, target: Tensor, kept: Candidates) -> Tensor:
        """(A, K) p; a row is 0 if all classes drawn are targets of the example."""
        weight, bias = self.table.rows(kept.ids)
        logit = torch.addmm(bias - kept.log_q, query.detach(), weight.t())
        mask_hits(logit, kept.ids, target)
        nothing = logit.amax(dim=1, keepdim=True).isneginf()
        return torch.softmax(logit, dim=1).masked_fill_(nothing, 0.0)

    def _refresh(self) -> None:
        self.ngrams.refresh()
        drawn, (total, steps) = int(self.num_drawn), self.ess_heard.tolist()
        if not math.isfinite(total):
            raise DataError(
                f"the effective sample size is {total} at step {self.step}: training has diverged. "
                "Lower the learning rate of the rows."
            )
        wanted = drawn * self.min_ess * steps / total  # ESS is proportional to the number of draws
        wanted = min(max(wanted, drawn / 2, self.min_ess), 2 * drawn, self.num_samples)
        self.num_drawn.fill_(math.ceil(wanted))
        self.ess_heard.zero_()
        if self.ranks.size > 1:
            adapted = (int(self.num_drawn), self.ngrams.checksum())
            self.ranks.check_equal("the adapted proposal", adapted)

    def extra_repr(self) -> str:
        return f"num_samples={self.num_samples}, min_ess={self.min_ess:g}"
