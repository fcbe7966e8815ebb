"""One-vs-all: a logistic regression for each class (Rifkin and Klautau 2004).

    loss_b = sum_l w_bl * ( softplus(-s_bl) + sum_{c no target of b} softplus(s_bc) )

Exact, without sampling. No (B, C) matrix is stored; a step needs a copy of all rows and their
gradient, (C, D) each.
"""

import torch
from torch import Tensor

from tapas.heads.batch import Batch, positive_scores
from tapas.heads.flat import LookupHead
from tapas.losses.binary import all_classes_cost, binary_loss


class OneVsAll(LookupHead):
    """sigmoid(s_c) learns the probability that class c is a target, separately for each class.

    `topk` ranks by the scores s. They are not softmax logits: `log_prob` and `full_loss` are
    exact softmaxes of them, but not calibrated. At the optimum s_c = log p_c - log(1 - p_c), and
    a softmax of that overestimates the frequent classes. Arguments are those of `FlatHead`.
    """

    method = "one-vs-all"
    title = "One-vs-all"
    paper = "Rifkin, Klautau 2004"
    bibtex = ("rifkin2004defense",)
    every_row = True
    targets_softmax = False

    @property
    def scores_per_example(self) -> float:
        return self.num_classes

    def losses(self, batch: Batch, context: Tensor | None) -> Tensor:
        every = torch.arange(self.num_classes, device=self.table.device)
        weight, bias = self.table.lookup(every, return_bias=True)
        positive = positive_scores(batch, weight, bias)
        pushed = all_classes_cost(batch.query, weight, bias, batch.target)
        return binary_loss(positive, pushed, batch.weight)
