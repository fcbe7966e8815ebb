"""Generalised binary cross-entropy, of gSASRec (Petrov and Macdonald, RecSys 2023).

    alpha  = n / C                                           share of classes in the sample
    beta   = alpha * ( t * (1 - 1/alpha) + 1/alpha ) = 1 - t * (1 - alpha)
    loss_b = sum_l w_bl * ( beta * softplus(-s_bl) + sum_k softplus(s_bk) )

With few negatives for every positive, a model becomes overconfident. Weighting the positive by
beta corrects for it: at t = 1 the sampled loss is, in expectation, alpha times that of one-vs-all
and sigmoid(s) is calibrated; t = 0 is plain binary cross-entropy.

The paper draws the negatives of each example from the C - 1 other classes, so its alpha is
n / (C - 1). Here the batch shares n distinct of all C classes, and each example leaves out its
targets: every other class is drawn with probability n / C. The constant factor 1 / (n + 1) of the
paper is left out.
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
from tapas.shapes import check_samples, number


class GBCE(NoiseHead):
    """Binary cross-entropy with sampled negatives and down-weighted positives.

    Args:
        num_samples: n, distinct classes drawn for each batch.
        calibration: t, between 0 (plain binary cross-entropy) and 1 (calibrated).
        counts, proposal: what classes are drawn from, as in `SampledSoftmax`; uniform if left
            out, as in the theory. With another proposal alpha is still n / C, and classes drawn
            often get lower scores.
        options: `table`, `row_optimizer`, `bias`, `seed` and so on; see `FlatHead`.

    As in `OneVsAll`, scores are not softmax logits.
    """

    method = "gbce"
    title = "gBCE"
    paper = "Petrov, Macdonald 2023"
    bibtex = ("petrov2023gsasrec",)
    options: ClassVar[Options] = {
        **drawn_options(search=()),
        "calibration": Option(
            0.75,
            float,
            low=0,
            high=1,
            search=(0.75, 1.0),
            help="t: 0 is plain binary cross-entropy, 1 corrects fully for the sampling",
        ),
    }
    targets_softmax = False

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        num_samples: int,
        calibration: float = 0.75,
        counts: "SparseCounts | None" = None,
        proposal: Proposal | None = None,
        **options: Unpack[FlatOptions],
    ):
        super().__init__(
            num_classes, dim, num_samples=num_samples, counts=counts, proposal=proposal, **options
        )
        check_samples(num_samples, self.num_classes)
        if not 0 <= number(calibration) <= 1:
            raise UsageError(
                f"calibration must be between 0 and 1, got {calibration!r}. 0 is plain binary "
                "cross-entropy, 1 corrects fully for the sampling."
            )
        self.calibration = float(calibration)

    @property
    def scores_per_example(self) -> float:
        return self.num_samples

    @property
    def beta(self) -> float:
        """Weight of a positive."""
        return 1 - self.calibration * (1 - self.num_samples / self.num_classes)

    def draw(self, source: Proposal) -> Tensor:
        return source.sample(self.num_samples, generator=self._draws()).ids

    def losses(self, batch: Batch, context: Tensor | None) -> Tensor:
        noise = self.noise(batch, context)
        positive, negative = self.scores(batch, noise.ids)
        others = leave_out(negative, noise.ids, batch.target)
        return binary_loss(positive, noise_cost(others), batch.weight, pull=self.beta)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, calibration={self.calibration:g}"
