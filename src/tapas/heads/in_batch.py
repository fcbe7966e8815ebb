"""In-batch softmax with logQ (Yi et al. 2019), and mixed negatives (Yang et al. 2020).

    loss_b = log( exp(s_by) + sum_k exp(s_bk - log p_k) ) - s_by      k: targets of the batch

Frequent classes are often in a batch; dividing by p_k, the probability that class k is in a batch,
corrects for that. It is estimated on the fly: A_k is the last step with k in the batch, B_k a
moving average of the number of steps between two such steps, and p_k = 1 / B_k.

    B_k <- (1 - rate) B_k + rate (step - A_k);   A_k <- step          for every k of the batch

If targets are independent, step - A_k has the mean 1 / p_k, and so has B_k, which is the weight of
class k when it is in a batch: the sum is unbiased. The target of an example counts once and is not
corrected, as in every sampled softmax here.

Mixed negatives add `num_samples` classes drawn from a proposal, because a class that is never a
target would otherwise never be a negative. Let e_k = 1 - (1 - q_k)^n, about the probability to be
drawn, and pi_k the expected count of the draw. Class k has the weight

    1 / (p_k + e_k) if it is in the batch   +   e_k / (p_k + e_k) / pi_k if it was drawn

(the balance heuristic), with mean 1. The probability to be in the union,
1 - (1 - p_k)(1 - pi_k), would do as well, but pi_k is exact only for classes that were drawn.

With `presample_factor` r > 1 the drawn classes are a pool of r*n, of which the second pass of TAPAS
keeps n by priority, with these weights in place of 1 / pi_k: hard classes among those that the
batch does not cover. It multiplies them by weights of its own with mean 1, so the sum stays
unbiased. (Not in the paper.)
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from tapas.candidates import Candidates, index_of
from tapas.errors import UsageError
from tapas.heads.facts import UNIFORM_FIRST, Option, Options, drawn_options
from tapas.heads.flat import FlatOptions, SharedSample, build_proposal, check_shards
from tapas.proposals import Proposal
from tapas.proposals.squashed import SparseCounts
from tapas.selection import Priority
from tapas.shapes import check_positive, check_samples, number
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import SecondPass

RATE = Option(
    0.01,
    float,
    low=1e-9,
    high=1,
    search=(0.01, 0.1),
    help="learning rate of the estimated frequency of a class",
)


class InBatchSoftmax(SharedSample):
    """The targets of a batch are the negatives of its other examples, weighted by rarity.

    Args:
        rate: learning rate of the estimated frequency of a class, above 0 and at most 1.
        options: `table`, `row_optimizer`, `bias`, `seed` and so on; see `FlatHead`.

    At first the frequency of rare classes is overestimated: the first interval of a class is
    counted from step 0. The negatives of an example come from the other examples of its batch,
    one less than p_k is estimated for, a relative bias of 1 / batch size. Classes that are never
    a target are never pushed down: see `MixedSoftmax`. The estimate takes 8 bytes for each class,
    on every rank.
    """

    method = "in-batch"
    title = "In-batch softmax with logQ"
    paper = "Yi et al. 2019"
    bibtex: ClassVar[tuple[str, ...]] = ("yi2019sampling",)
    options: ClassVar[Options] = {"rate": RATE}
    learns_state = True
    learns_from_batch = True

    last_seen: Tensor  # (C,) int32: A, -1 if not yet seen
    gap: Tensor  # (C,) float32: B, the mean gap between two steps; 0 if not yet seen

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        rate: float = 0.01,
        **options: Unpack[FlatOptions],
    ):
        super().__init__(num_classes, dim, **options)
        if not 0 < number(rate) <= 1:
            raise UsageError(f"rate must be above 0 and at most 1, got {rate!r}. Try 0.01.")
        self.rate = float(rate)
        size, device = self.num_classes, self.table.device
        self.register_buffer("last_seen", torch.full((size,), -1, dtype=torch.int32, device=device))
        self.register_buffer("gap", torch.zeros(size, dtype=torch.float32, device=device))

    def candidates(self, batch: GlobalBatch) -> Candidates:
        in_batch = self._distinct(batch)
        return Candidates(in_batch, -self._mean_gap_now(in_batch).log())

    def _costs(
        self, batch: GlobalBatch, counted: Tensor | None, factor: float | None = None
    ) -> Tensor:
        with torch.no_grad():
            kept = self.candidates(batch).to(self.table.device)
        self._count_scores(len(kept))
        if self._is_training():
            in_batch = self._distinct(batch)
            self.gap[in_batch] = self._mean_gap_now(in_batch).to(self.gap.dtype)
            self.last_seen[in_batch] = self.step
        return self.table.sampled_costs(batch, kept, counted=counted, factor=factor)

    def _distinct(self, batch: GlobalBatch) -> Tensor:
        """Distinct targets of all examples, ascending, without padding."""
        ids: Tensor = torch.unique(batch.target.to(self.gap.device))
        return ids[ids >= 0]

    def _mean_gap_now(self, ids: Tensor) -> Tensor:
        """(N,) B of `ids` (N,), updated with this step, which has them."""
        mean_gap = self.gap[ids].float()
        waited = (self.step - self.last_seen[ids]).float()
        return torch.where(mean_gap > 0, torch.lerp(mean_gap, waited, self.rate), waited)

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"


class MixedSoftmax(InBatchSoftmax):
    """In-batch negatives and sampled ones together.

    Args:
        num_samples: n, classes drawn for each batch.
        presample_factor: r. If above 1, min(r*n, num_classes) classes are drawn and a second pass
            keeps n of them, as in `TapasSoftmax` with selection="priority".
        counts, proposal: Q, what they are drawn from, as in `SampledSoftmax`.
        rate: as in `InBatchSoftmax`.
        options: `table`, `row_optimizer`, `bias`, `seed` and so on; see `FlatHead`.
    """

    method = "mixed"
    title = "In-batch and sampled"
    paper = "Yang et al. 2020"
    bibtex = ("yang2020mixed", "yi2019sampling")
    options: ClassVar[Options] = {
        **drawn_options(UNIFORM_FIRST),
        "presample_factor": Option(
            1, int, low=1, help="r: if above 1, the n are kept of r*n drawn, as in TAPAS"
        ),
        "rate": replace(RATE, search=()),
    }

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        num_samples: int,
        presample_factor: int = 1,
        counts: "SparseCounts | None" = None,
        proposal: Proposal | None = None,
        rate: float = 0.01,
        **options: Unpack[FlatOptions],
    ):
        super().__init__(num_classes, dim, rate=rate, **options)
        self.num_samples = check_samples(num_samples, self.num_classes)
        self.presample_factor = check_positive("presample_factor", presample_factor)
        if presample_factor > 1:
            check_shards(self.table, num_samples)
        self.proposal = build_proposal(proposal, counts, self.num_classes)

    @classmethod
    def papers_of(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The papers of mixed negatives, and those of the second pass if there is one."""
        second = ("bai2017tapas", "duffield2007priority")
        return (*cls.bibtex, *second) if options["presample_factor"] > 1 else cls.bibtex

    def papers(self) -> tuple[str, ...]:
        return self.papers_of({"presample_factor": self.presample_factor})

    @classmethod
    def rows_per_step(cls, options: Mapping[str, Any], num_classes: int) -> tuple[int, int]:
        return options["num_samples"] or 1, options["presample_factor"]

    def candidates(self, batch: GlobalBatch) -> Candidates:
        proposal, generator = self.proposal.conditioned_on(batch.context), self._draws()
        size = min(self.presample_factor * self.num_samples, self.num_classes)
        pool = proposal.sample(size, generator=generator)
        if self.num_samples == self.num_classes:  # every class was drawn and is kept
            return pool
        in_batch = self._distinct(batch)
        gap_in_batch = self._mean_gap_now(in_batch).cpu()
        in_batch = in_batch.cpu()

        def chances(ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Whether `ids` (K,) are in the batch, p + e, and e, all (K,)."""
            index, found = index_of(in_batch, ids)
            mean_gap = self._mean_gap_before(ids.to(self.gap.device)).cpu()
            mean_gap[found] = gap_in_batch[index[found]]
            drawn = -torch.expm1(size * proposal.log_not_drawn(ids))
            return found, 1 / mean_gap + drawn, drawn

        _, total, drawn = chances(pool.ids)
        pool = Candidates(pool.ids, (pool.log_q + (total / drawn).log()).float())
        kept = self.table.select(pool, self._second_pass(batch, pool, generator))
        kept = kept.to(torch.device("cpu"))
        ids = torch.unique(torch.cat([in_batch, kept.ids]))
        found, total, _ = chances(ids)
        weight = torch.where(found, 1 / total, 0.0).double()
        weight[index_of(ids, kept.ids)[0]] += kept.log_q.double().neg().exp()
        return Candidates(ids, -weight.log().float())

    def _second_pass(
        self, batch: GlobalBatch, pool: Candidates, generator: torch.Generator
    ) -> SecondPass | None:
        """How n classes of `pool` are kept; None if all are."""
        return SecondPass.draw(batch, pool, self.num_samples, Priority(), 1.0, generator=generator)

    def _mean_gap_before(self, ids: Tensor) -> Tensor:
        """(N,) B of `ids` (N,) as of the last step; the number of steps so far if never seen."""
        mean_gap = self.gap[ids].float()
        return mean_gap.where(mean_gap > 0, mean_gap.new_tensor(self.step + 1))

    def extra_repr(self) -> str:
        return (
            f"num_samples={self.num_samples}, presample_factor={self.presample_factor}, "
            f"proposal={self.proposal!r}, rate={self.rate:g}"
        )
