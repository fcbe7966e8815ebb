"""Sampled softmax (Bengio and Senécal 2003): targets against a few classes drawn from Q.

    loss_b = log( exp(s_by) + sum_k exp(s_bk - log E[count_k]) ) - s_by

Subtracting the log expected counts makes the sum an unbiased estimate of the partition
function; the loss and its gradient approach those of the full softmax as n grows.
"""

from tapas.candidates import Candidates
from tapas.heads.building import build_proposal
from tapas.heads.flat import SharedSample
from tapas.proposals import Proposal
from tapas.shapes import check_samples
from tapas.tables import ClassTable
from tapas.tables.meeting import Meeting


class SampledSoftmax(SharedSample):
    """`num_samples` distinct classes from `proposal` for each batch; uniform when left out.

    A `Bigram` proposal wants the `context` of every batch.
    """

    method = "sampled"
    bibtex = ("bengio2003quick", "jean2015large")

    def __init__(
        self,
        table: ClassTable,
        *,
        num_samples: int,
        proposal: Proposal | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
        seed: int = 0,
    ):
        super().__init__(table, reduction=reduction, ignore_index=ignore_index, seed=seed)
        self.num_samples = check_samples(num_samples, self.num_classes)
        self.proposal = build_proposal(proposal, self.num_classes)

    @property
    def scores_per_example(self) -> float:
        return self.num_samples

    def candidates(self, meeting: Meeting) -> Candidates:
        proposal = self.proposal.given(meeting.context)
        return proposal.sample(self.num_samples, generator=self._draws())

    def extra_repr(self) -> str:
        return f"num_samples={self.num_samples}, proposal={self.proposal!r}"
