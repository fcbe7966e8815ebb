"""Negative sampling, the loss of word2vec (Mikolov, Sutskever, Chen, Corrado, Dean 2013).

    loss_b = sum_l w_bl * ( softplus(-s_bl) + k * mean_{j=1..n} softplus(s_bj) )

The paper draws k classes from Q for each example. Here the batch shares n draws, weighted so that
they count as k: the same loss in expectation, with a variance that falls with n. Draws that are
targets of the example are left out of its sum, which is still divided by n.
"""

from typing import ClassVar, Unpack

from torch import Tensor

from tapas.errors import UsageError
from tapas.heads.batch import Batch
from tapas.heads.facts import Option, Options, drawn_options
from tapas.heads.flat import FlatOptions
from tapas.heads.nce import NoiseHead
from tapas.losses.binary import binary_loss, leave_out, noise_cost
from tapas.proposals import Proposal
from tapas.proposals.squashed import SparseCounts
from tapas.shapes import number


class NegativeSampling(NoiseHead):
    """Binary cross-entropy with negatives drawn from a proposal.

    Args:
        num_samples: n, draws for each batch.
        negatives: k, the total weight of these draws beside one target.
        counts, proposal: Q, as in `SampledSoftmax`; the paper has `counts`. Uniform if left out.
        options: `table`, `row_optimizer`, `bias`, `seed` and so on; see `FlatHead`.

    Scores do not estimate probabilities. At the optimum s_c = log(p_c / (1 - p_c)) - log(k q_c),
    for rare classes the pointwise mutual information of query and class minus log k (Levy and
    Goldberg 2014). `topk` and `log_prob` use s as it is, and so rank by p / q instead of p,
    unless Q is uniform.
    """

    method = "negative-sampling"
    title = "Negative sampling"
    paper = "Mikolov et al. 2013"
    bibtex = ("mikolov2013distributed", "levy2014neural")
    options: ClassVar[Options] = {
        # the optimum is log p - log q: with uniform noise, log p
        **drawn_options(search=(0.75, 0.0)),
        "negatives": Option(
            5.0, float, low=1e-6, high=1e9, help="k, total weight of the draws beside one target"
        ),
    }
    targets_softmax = False

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        num_samples: int,
        negatives: float = 5.0,
        counts: "SparseCounts | None" = None,
        proposal: Proposal | None = None,
        **options: Unpack[FlatOptions],
    ):
        super().__init__(
            num_classes, dim, num_samples=num_samples, counts=counts, proposal=proposal, **options
        )
        if not 0 < number(negatives) < float("inf"):
            raise UsageError(
                f"negatives must be a finite number above 0, got {negatives!r}. It is the total "
                "weight of a batch's draws beside one target; the paper takes 5 to 20, or 2 to 5 "
                "for large data."
            )
        self.negatives = float(negatives)

    def losses(self, batch: Batch, context: Tensor | None) -> Tensor:
        noise = self.noise(batch, context)
        positive, negative = self.scores(batch, noise.ids)
        others = leave_out(negative, noise.ids, batch.target)
        each = noise.times * (self.negatives / self.num_samples)
        return binary_loss(positive, noise_cost(others, each), batch.weight)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, negatives={self.negatives:g}"
