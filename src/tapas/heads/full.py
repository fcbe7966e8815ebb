"""Full softmax: the exact loss over all classes, with a gradient for every row.

    loss_b = log sum_c exp(s_bc) - s_by

Exact, without sampling. A step computes the scores in blocks and needs memory for the gradient
of all rows, (C, D).
"""

from tapas.candidates import Candidates
from tapas.heads.flat import SharedSample
from tapas.tables.ranks import GlobalBatch


class FullSoftmax(SharedSample):
    """The loss that the other softmax heads approximate; the right choice for few classes.

    Arguments are those of `FlatHead`.
    """

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
