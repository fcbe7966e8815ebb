"""Sampled softmax (Bengio and Senécal 2003): targets against a few classes drawn from Q.

    loss_b = log( exp(s_by) + sum_k exp(s_bk - log E[count_k]) ) - s_by

Subtracting the log expected counts makes the sum an unbiased estimate of the partition sum. Its
logarithm is too small on average; loss and gradient approach those of the full softmax as n
grows.
"""

from typing import Unpack

from tapas.candidates import Candidates
from tapas.heads.facts import drawn_options
from tapas.heads.flat import FlatOptions, SharedSample, build_proposal
from tapas.proposals import Proposal
from tapas.proposals.squashed import SparseCounts
from tapas.shapes import check_samples
from tapas.tables.ranks import GlobalBatch


class SampledSoftmax(SharedSample):
    """Softmax cross-entropy over the targets and a random sample of classes for each batch.

    Args:
        num_samples: n, the number of distinct classes drawn.
        counts: (C,) how often training has each class; Q is then `tapas.Squashed(counts)`.
        proposal: another Q to draw from, instead of `counts`; without either it is uniform,
            which costs much accuracy. A `Bigram` needs the `context` of every batch.
        options: `table`, `row_optimizer`, `bias`, `seed` and so on; see `FlatHead`.
    """

    method = "sampled"
    title = "Sampled softmax"
    paper = "Bengio, Senécal 2003"
    bibtex = ("bengio2003quick", "jean2015large")
    options = drawn_options()
    estimates_probabilities = True

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
        self.num_samples = check_samples(num_samples, self.num_classes)
        self.proposal = build_proposal(proposal, counts, self.num_classes)

    @property
    def scores_per_example(self) -> float:
        return self.num_samples

    def candidates(self, batch: GlobalBatch) -> Candidates:
        proposal = self.proposal.conditioned_on(batch.context)
        return proposal.sample(self.num_samples, generator=self._draws())

    def extra_repr(self) -> str:
        return f"num_samples={self.num_samples}, proposal={self.proposal!r}"
