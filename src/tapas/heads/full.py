"""Full softmax: the exact loss over all classes, and its gradient for every row.

    loss_b = log sum_c exp(s_bc) - s_by

Nothing is drawn. The (B, C) scores never exist at once; beside the rows themselves a step
holds their gradient, (C, D).
"""

from tapas.candidates import Candidates
from tapas.heads.flat import SharedSample
from tapas.tables.ranks import GlobalBatch


class FullSoftmax(SharedSample):
    """What all others approximate; the right choice for few classes."""

    method = "full"
    title = "Full softmax"
    paper = ""
    bibtex = ()
    every_row = True
    estimates_probabilities = True

    @property
    def scores_per_example(self) -> float:
        return self.num_classes

    def candidates(self, batch: GlobalBatch) -> Candidates:
        return Candidates.every(self.num_classes, self.table.device)
