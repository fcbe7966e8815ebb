"""Noise-contrastive estimation (Gutmann and Hyvärinen 2012; Mnih and Teh 2012).

Logistic regression separates a target from k noise classes, drawn independently from Q. Let s be
the unnormalised log-probability, with a partition sum taken to be 1. The odds that a class came
from the data and not from the noise are exp(s) / (k q):

    delta_c = s_c - log(k q_c)
    loss_b  = sum_l w_bl * ( softplus(-delta_bl) + sum_{j=1..k} softplus(delta_bj) )

At s = log p the expected gradient is 0, for any k and any positive Q. That holds for the complete
noise: a noise class that is also a target of the example is not left out, and one that was drawn
twice counts twice.
"""

import math
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from tapas.heads.batch import Batch
from tapas.heads.facts import drawn_options
from tapas.heads.flat import FlatOptions, LookupHead, build_proposal
from tapas.losses.binary import binary_loss, noise_cost
from tapas.proposals import Proposal, Uniform
from tapas.proposals.squashed import SparseCounts
from tapas.shapes import check_positive


@dataclass(frozen=True, slots=True)
class Noise:
    """Classes drawn for a batch, and the proposal they were drawn from."""

    source: Proposal
    ids: Tensor  # (K,) distinct, ascending
    times: Tensor  # (K,) float32, how often each was drawn


class NoiseHead(LookupHead):
    """Base class of heads that compare each target with noise from `proposal`, one for a batch."""

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        num_samples: int,
        counts: "SparseCounts | None" = None,
        proposal: Proposal | None = None,
        **options: Unpack[FlatOptions],
    ):
        super().__init__(num_classes, dim, **options)
        self.num_samples = check_positive("num_samples", num_samples)
        self.proposal = build_proposal(proposal, counts, self.num_classes)

    def draw(self, source: Proposal) -> Tensor:
        """The draws of this step, with replacement, on the CPU."""
        return source.draw(self.num_samples, generator=self._draws())

    def noise(self, batch: Batch, context: Tensor | None) -> Noise:
        """The noise of this step; none on a rank without examples."""
        if len(batch.query):
            source = self.proposal.conditioned_on(context)
            draws = self.draw(source)
        else:  # nor is there a context, which the proposal may need
            source = Uniform(self.num_classes)
            draws = torch.empty(0, dtype=torch.int64, device="cpu")
        ids, times = torch.unique(draws, return_counts=True)
        if len(ids):  # a class that was drawn twice is scored once
            self._count_scores(len(ids))
        return Noise(source, ids.to(self.table.device), times.to(self.table.device).float())

    def scores(self, batch: Batch, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (B, L) of the targets, 0 for padding, and (B, K) of the classes `ids` (K,)."""
        real = batch.target >= 0
        example = real.nonzero()[:, 0]
        targets = batch.target[real]
        weight, bias = self.table.lookup(torch.cat([targets, ids]), return_bias=True)
        target_rows, noise_rows = torch.split(weight, [len(targets), len(ids)])
        target_bias, noise_bias = torch.split(bias, [len(targets), len(ids)])
        score = (target_rows * batch.query.index_select(0, example)).sum(dim=1) + target_bias
        positive = score.new_zeros(real.shape).masked_scatter(real, score)
        return positive, torch.addmm(noise_bias, batch.query, noise_rows.t())

    def extra_repr(self) -> str:
        return f"num_samples={self.num_samples}, proposal={self.proposal!r}"


class NCE(NoiseHead):
    """Learns to distinguish targets from noise; scores become log-probabilities.

    Args:
        num_samples: k, draws of noise for each batch, with replacement.
        counts: (C,) how often training has each class; Q is then `tapas.Squashed(counts)`.
        proposal: another Q, what noise is drawn from; uniform without either. Noise that resembles
            the data, such as its unigram, needs the fewest draws. A `Bigram` needs the `context`
            of a batch.
        options: `table`, `row_optimizer`, `bias`, `seed` and so on; see `FlatHead`. Start `bias`
            at the log of the class frequencies: otherwise the first steps only lower all scores.
    """

    method = "nce"
    title = "NCE"
    paper = "Gutmann, Hyvärinen 2012"
    bibtex = ("gutmann2012noise", "mnih2012fast")
    options = drawn_options()

    def losses(self, batch: Batch, context: Tensor | None) -> Tensor:
        noise = self.noise(batch, context)
        positive, negative = self.scores(batch, noise.ids)
        positive_delta = positive - self._log_expected(noise, batch.target.clamp(min=0))
        delta = negative - self._log_expected(noise, noise.ids)
        return binary_loss(positive_delta, noise_cost(delta, noise.times), batch.weight)

    def _log_expected(self, noise: Noise, ids: Tensor) -> Tensor:
        """log(k q), the log expected count of `ids` in the noise, in their shape."""
        log_count = noise.source.log_prob(ids.cpu()) + math.log(self.num_samples)
        return log_count.to(self.table.device, torch.float32)
