"""Self-normalisation with infrequent normalisers (Devlin et al. 2014; Andreas and Klein 2015).

    loss_b = sum_l w_bl * ( r_b * ( log Z_b + penalty * (log Z_b)^2 ) - s_bl )
    log Z_b = log sum_c exp(s_bc)             over all classes

The penalty keeps log Z near 0, so that s is close to a log-probability. It is enough to normalise
a random `share` of each batch: these m of B examples have r_b = B / m, the others have r_b = 0 and
need only the scores of their targets. In expectation that is the loss of the batch with all
normalisers. share = 1 and penalty = 0 is full softmax. The term log Z of the likelihood is kept,
because otherwise only the penalty would bound the scores.
"""

import math
from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

import tapas.native as native
from tapas.errors import UsageError
from tapas.heads.batch import Batch, positive_scores
from tapas.heads.facts import Option, Options
from tapas.heads.flat import FlatOptions, LookupHead
from tapas.losses.sampled_softmax import sums_by_blocks
from tapas.shapes import number
from tapas.torch_modes import first_derivative

SCORES_PER_CHUNK = 1 << 18  # floats of a (B, chunk) block of scores, so that it fits in a cache


class SelfNormalised(LookupHead):
    """Softmax with exact normalisers for a random share of every batch, kept near 1.

    Args:
        penalty: weight of (log Z)^2.
        share: share of each batch that is normalised, above 0 and at most 1.
        options: `table`, `row_optimizer`, `bias`, `seed` and so on; see `FlatHead`.

    After training, scores are approximate log-probabilities without a sum over classes; compare
    the scores of `topk` with `log_prob` to see how close. The loss of an example may be negative,
    because most have no normaliser: evaluate with `full_loss`. A step needs a copy of all rows
    and their gradient, (C, D) each.
    """

    method = "self-normalised"
    title = "Self-normalisation"
    paper = "Andreas, Klein 2015"
    bibtex = ("andreas2015when", "devlin2014fast")
    options: ClassVar[Options] = {
        "penalty": Option(
            0.1,
            float,
            low=0,
            high=1e6,
            search=(0.1, 1.0),
            help="weight of the squared log partition sum",
        ),
        "share": Option(
            0.1,
            float,
            low=1e-9,
            high=1,
            help="share of the examples of a batch that are normalised",
        ),
    }
    every_row = True

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        penalty: float = 0.1,
        share: float = 0.1,
        **options: Unpack[FlatOptions],
    ):
        super().__init__(num_classes, dim, **options)
        if not 0 <= number(penalty) < math.inf:
            raise UsageError(
                f"penalty must be a finite number of at least 0, got {penalty!r}. It is the "
                "weight of (log Z)^2; 0 is no penalty."
            )
        if not 0 < number(share) <= 1:
            raise UsageError(
                f"share must be above 0 and at most 1, got {share!r}. It is the share of each "
                "batch that is normalised; without any, scores would grow without bound."
            )
        self.penalty, self.share = float(penalty), float(share)

    def losses(self, batch: Batch, context: Tensor | None) -> Tensor:
        every = torch.arange(self.num_classes, device=self.table.device)
        weight, bias = self.table.lookup(every, return_bias=True)
        chosen = self.chosen(len(batch.query)).to(self.table.device)
        if len(chosen):  # on average: most examples compute none
            self._count_scores(self.num_classes * len(chosen) / len(batch.query))
        log_z: Tensor = _LogPartition.apply(  # type: ignore[no-untyped-call]
            batch.query.index_select(0, chosen), weight, bias
        )
        ratio = len(batch.query) / max(1, len(chosen))
        cost = batch.query.new_zeros(len(batch.query)).index_copy(
            0, chosen, ratio * (log_z + self.penalty * log_z.square())
        )
        loss = cost[:, None] - positive_scores(batch, weight, bias)
        return (loss if batch.weight is None else loss * batch.weight).sum(dim=1)

    def chosen(self, num_examples: int) -> Tensor:
        """(m,) ascending positions of the examples to normalise in this step, at least one."""
        num_chosen = min(num_examples, max(1, round(self.share * num_examples)))
        order = torch.randperm(num_examples, generator=self._draws("normalised"), device="cpu")
        return order[:num_chosen].sort().values

    def extra_repr(self) -> str:
        return f"penalty={self.penalty:g}, share={self.share:g}"


class _LogPartition(torch.autograd.Function):
    """(B,) log of the sum of exp(score) over all rows (C, D), computed in chunks."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if native.readable(weight, query, bias):
            log_z, sums = native.log_sum(weight, bias, query)
        else:
            chunks = _chunks(query, weight, bias)
            scores = (torch.addmm(offset, query, rows.t()) for rows, offset in chunks)
            log_z, sums = sums_by_blocks(query, scores)
        ctx.save_for_backward(query, weight, bias, sums)
        return log_z

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, weight, bias, sums = ctx.saved_tensors
        if native.readable(weight, query, bias, grad):
            every = torch.arange(len(weight), device=weight.device)
            no_target = torch.full((len(query), 1), -1, device=weight.device)
            return native.gradients(weight, bias, query, every, no_target, sums=sums, scale=grad)
        query_grad, pushed, pushed_bias = torch.zeros_like(query), [], []
        reference, scale = sums[0, :, None], (sums[1] * grad)[:, None]
        with torch.autocast(query.device.type, enabled=False):
            for rows, offset in _chunks(query, weight, bias):
                score = torch.addmm(offset, query, rows.t())
                pull = score.sub_(reference).exp_().mul_(scale)
                query_grad.addmm_(pull, rows)
                pushed.append(pull.t() @ query)
                pushed_bias.append(pull.sum(dim=0))
        return query_grad, torch.cat(pushed), torch.cat(pushed_bias)


def _chunks(query: Tensor, weight: Tensor, bias: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Rows and biases of all classes in chunks."""
    size = max(1, SCORES_PER_CHUNK // max(1, len(query)))
    return zip(torch.split(weight, size), torch.split(bias, size), strict=True)
