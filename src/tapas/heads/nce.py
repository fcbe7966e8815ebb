"""Noise-contrastive estimation (Gutmann and Hyvärinen 2012; Mnih and Teh 2012).

A target is told from k classes of noise, drawn independently from Q, by logistic regression.
With s the unnormalised log-probability, whose partition function is taken to be 1, a class
came from the data rather than from the noise with odds exp(s) / (k q):

    delta_c = s_c - log(k q_c)
    loss_b  = sum_l w_bl * ( softplus(-delta_bl) + sum_{j=1..k} softplus(delta_bj) )

At s = log p the expected gradient is 0, for any k and any positive Q. That needs all of the
noise: a class drawn as noise that is also a target of the example stays, and one drawn twice
counts twice.
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
from tapas.shapes import check_positive


@dataclass(frozen=True, slots=True)
class Noise:
    """What was drawn for a batch, and from what."""

    source: Proposal
    ids: Tensor  # (K,) distinct, rising
    times: Tensor  # (K,) float32; how often each was drawn


class NoiseHead(LookupHead):
    """Targets, each by itself, against noise from `proposal` that the batch shares."""

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        num_samples: int,
        proposal: Proposal | None = None,
        **options: Unpack[FlatOptions],
    ):
        super().__init__(num_classes, dim, **options)
        self.num_samples = check_positive("num_samples", num_samples)
        self.proposal = build_proposal(proposal, self.num_classes)

    def draw(self, source: Proposal) -> Tensor:
        """The draws of this step, repeats allowed, on the CPU."""
        return source.draw(self.num_samples, generator=self._draws())

    def noise(self, batch: Batch, context: Tensor | None) -> Noise:
        """The noise of this step. A rank without examples has none to tell them from."""
        if len(batch.query):
            source = self.proposal.conditioned_on(context)
            draws = self.draw(source)
        else:  # nor has it a context, so that any proposal will do
            source = Uniform(self.num_classes)
            draws = torch.empty(0, dtype=torch.int64, device="cpu")
        ids, times = torch.unique(draws, return_counts=True)
        if len(ids):  # one that was drawn twice is scored once
            self._count_scores(len(ids))
        return Noise(source, ids.to(self.table.device), times.to(self.table.device).float())

    def scores(self, batch: Batch, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Of targets, (B, L), 0 for padding, and of classes `ids` (K,), (B, K)."""
        real = batch.target >= 0
        example = real.nonzero()[:, 0]
        own = batch.target[real]
        weight, bias = self.table.lookup(torch.cat([own, ids]), return_bias=True)
        own_rows, rows = torch.split(weight, [len(own), len(ids)])
        own_bias, biases = torch.split(bias, [len(own), len(ids)])
        score = (own_rows * batch.query.index_select(0, example)).sum(dim=1) + own_bias
        positive = score.new_zeros(real.shape).masked_scatter(real, score)
        return positive, torch.addmm(biases, batch.query, rows.t())

    def extra_repr(self) -> str:
        return f"num_samples={self.num_samples}, proposal={self.proposal!r}"


class NCE(NoiseHead):
    """`num_samples` draws of noise for each batch from `proposal`; uniform when left out.

    Noise that resembles the data, such as its unigram, needs the fewest draws. Start biases at
    the log of the class frequencies, or the first steps only learn that scores must be low.
    A `Bigram` proposal wants the `context` of every batch.
    """

    method = "nce"
    title = "NCE"
    paper = "Gutmann, Hyvärinen 2012"
    bibtex = ("gutmann2012noise", "mnih2012fast")
    options = drawn_options()

    def losses(self, batch: Batch, context: Tensor | None) -> Tensor:
        noise = self.noise(batch, context)
        positive, negative = self.scores(batch, noise.ids)
        own_delta = positive - self._log_expected(noise, batch.target.clamp(min=0))
        delta = negative - self._log_expected(noise, noise.ids)
        return binary_loss(own_delta, noise_cost(delta, noise.times), batch.weight)

    def _log_expected(self, noise: Noise, ids: Tensor) -> Tensor:
        """log(k q): how often a batch's noise is expected to hold each of `ids`, their shape."""
        log_count = noise.source.log_prob(ids.cpu()) + math.log(self.num_samples)
        return log_count.to(self.table.device, torch.float32)
