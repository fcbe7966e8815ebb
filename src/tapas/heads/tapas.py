"""TAPAS: two-pass approximate adaptive sampling for softmax (Bai, Goldman, Zhang 2017).

Per batch: draw a pool of r*n classes from Q; score it with the batch and keep n; softmax
cross-entropy on targets and kept classes. r = 1 is sampled softmax.
"""

from contextlib import AbstractContextManager
from typing import Self

import torch
from torch import Tensor, nn

from tapas.candidates import Candidates
from tapas.compiling import outside_graphs
from tapas.errors import UsageError
from tapas.heads.batch import Batch, check_somebody, narrow, prepare
from tapas.heads.building import DEFAULT_ROW_OPTIMIZER, TableOptions, build_proposal, build_table
from tapas.heads.config import TapasConfig
from tapas.heads.diagnostics import Diagnosis, diagnose
from tapas.heads.second_pass import question_of
from tapas.losses import sampled_softmax_loss, target_costs
from tapas.precision import in_float32
from tapas.proposals import Proposal
from tapas.rng import stream
from tapas.schedule import Schedule, as_schedule, check_temperature
from tapas.selection import Selection, as_selection
from tapas.shapes import check_ids, check_query, check_tensor
from tapas.tables import ClassTable, RowOptimizer
from tapas.tables.meeting import Meeting
from tapas.tables.second_pass import Question, uncorrected


class TapasSoftmax(nn.Module):
    """A softmax head over many classes that looks at few of them.

    Args:
        num_classes, dim: size of the class table; leave both out when you pass `table`.
        num_samples: n, classes kept for the loss.
        presample_factor: r; the pool has min(r*n, num_classes) classes. 1 is sampled softmax.
        temperature: tau of the second pass, a number or a schedule. Never touches the loss.
        proposal: Q of the first pass; uniform when left out.
        selection: "priority" (unbiased), "top" (the paper's), or a `Selection` of yours.
        row_optimizer: moves touched rows in `backward`; None gives sparse gradients to
            `table.weight` and `table.bias` for torch.optim.
        correction: "proposal" subtracts log expected counts from the logits; "none" does not.
        bias, dtype, num_shards: see `LocalTable`.

    The step counts training calls (those with gradients on, in training mode). Draws are
    named by (seed, step), so that a resumed run repeats them and `sample` shows just what
    the next `forward` on the same batch will keep.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        num_samples: int,
        presample_factor: int = 8,
        temperature: float | Schedule = 1.0,
        proposal: Proposal | None = None,
        selection: str | Selection = "priority",
        row_optimizer: RowOptimizer | None = DEFAULT_ROW_OPTIMIZER,
        correction: str = "proposal",
        reduction: str = "mean",
        ignore_index: int = -100,
        seed: int = 0,
        bias: bool | Tensor = True,
        dtype: torch.dtype = torch.float32,
        num_shards: int = 1,
        device: torch.device | str | None = None,
        table: ClassTable | None = None,
    ):
        super().__init__()
        self.config = TapasConfig(
            num_samples=num_samples,
            presample_factor=presample_factor,
            temperature=as_schedule(temperature),
            selection=as_selection(selection),
            correction=correction,
            reduction=reduction,
            ignore_index=ignore_index,
            seed=seed,
        )
        self.table = build_table(
            table,
            num_classes,
            dim,
            num_samples=num_samples,
            seed=seed,
            options=TableOptions(
                row_optimizer=row_optimizer,
                bias=bias,
                dtype=dtype,
                num_shards=num_shards,
                device=device,
            ),
        )
        self.proposal = build_proposal(proposal, self.table.num_classes)
        self.step = 0
        self.table.agree("the head", (self.config, self.proposal))

    @property
    def num_classes(self) -> int:
        return self.table.num_classes

    @property
    def temperature(self) -> float:
        """tau at the current step."""
        value = self.config.temperature(self.step)
        check_temperature("temperature", value)
        return float(value)

    @outside_graphs
    @in_float32
    def forward(
        self,
        query: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        *,
        context: Tensor | None = None,
    ) -> Tensor:
        """Sampled softmax loss in nats.

        Args:
            query:   (..., D) encoder outputs.
            target:  (...,) or (..., L) class ids; `ignore_index` is padding.
            weight:  the shape of `target`. Left out, an example's targets share 1 evenly.
            context: previous class of each example, for proposals that look at it.
        """
        batch, meeting = self._meet(query, target, weight, context)
        loss = sampled_softmax_loss(*self._logits(meeting), batch.weight, batch.counted)
        return batch.reduce(loss, self.config.reduction, meeting.mean_size)

    @outside_graphs
    @in_float32
    def sampled_log_prob(self, query: Tensor, target: Tensor) -> Tensor:
        """Log-probability of each target as `forward` estimates it, its shape; 0 for padding."""
        batch, meeting = self._meet(query, target, None, None)
        cost = target_costs(*self._logits(meeting), batch.counted)
        real = (target != self.config.ignore_index).to(cost.device)
        return -cost.new_zeros(target.shape).masked_scatter(real, cost[batch.target >= 0])

    def _meet(
        self, query: Tensor, target: Tensor, weight: Tensor | None, context: Tensor | None
    ) -> tuple[Batch, Meeting]:
        """This process's examples, and all that are looked at together."""
        with self.table.together():
            batch = self._prepare(query, target, weight)
            context = narrow(context, batch)
            meeting = self.table.meet(batch.query, batch.target, context, step=self.step)
        check_somebody(len(meeting.query))
        return batch, meeting

    def _logits(self, meeting: Meeting) -> tuple[Tensor, Tensor]:
        """Own logits and the log of the kept sum; a step, if this is training."""
        pool, question, generator = self._first_pass(meeting)
        logits = self.table.sampled(
            meeting,
            pool,
            self.config.num_samples,
            question,
            generator=generator,
            corrected=self.config.correction == "proposal",
        )
        if self.training and torch.is_grad_enabled():
            self.step += 1
        return logits

    @in_float32
    def sample(
        self, query: Tensor, target: Tensor | None = None, *, context: Tensor | None = None
    ) -> Candidates:
        """What the two passes keep for this batch, on the table's device.

        With `target`, exactly what the next `forward` will keep; without it, no query has
        targets of its own to leave out of its score.
        """
        if target is not None:
            return self._two_passes(self._meet(query, target, None, context)[1])[1]
        with self.table.together():
            query = check_query(query, self.table.dim)
            own = torch.full((len(query), 1), -1, device=query.device)
            meeting = self.table.meet(query, own, context, step=self.step)
        if not len(meeting.query):
            raise UsageError("the batch is empty: there is no query to sample for.")
        return self._two_passes(meeting)[1]

    def _prepare(self, query: Tensor, target: Tensor, weight: Tensor | None) -> Batch:
        return prepare(
            query,
            target,
            weight,
            num_classes=self.table.num_classes,
            dim=self.table.dim,
            ignore_index=self.config.ignore_index,
            may_be_empty=self.table.num_ranks > 1,
        )

    def _first_pass(self, meeting: Meeting) -> tuple[Candidates, Question, torch.Generator]:
        """S' of this step, by what the second pass shall score it, and from where it draws."""
        config, generator = self.config, stream(self.config.seed, "draws", self.step)
        size = min(config.presample_factor * config.num_samples, self.num_classes)
        pool = self.proposal.given(meeting.context).sample(size, generator=generator)
        question = question_of(meeting, size, config, self.temperature, generator=generator)
        return pool.to(self.table.device), question, generator

    def _two_passes(self, meeting: Meeting) -> tuple[Candidates, Candidates]:
        """S' and S of this step."""
        pool, question, generator = self._first_pass(meeting)
        kept = self.table.second_pass(pool, self.config.num_samples, question, generator=generator)
        return pool, kept if self.config.correction == "proposal" else uncorrected(kept)

    def accumulate(self) -> AbstractContextManager[None]:
        """Several backward passes, one update of the rows at the end of the block."""
        return self.table.accumulate()

    @in_float32
    def top(self, query: Tensor, k: int, *, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The k best of all classes for `query` (..., D): scores and ids, (..., k).

        Exact; equal scores by rising id. `exclude` (..., E) are classes to leave
        out of a row, negative is padding; where fewer than k remain ids end in -1.
        """
        with self.table.together():
            flat = check_query(query, self.table.dim)
            if exclude is not None:
                check_tensor("exclude", exclude)
                if exclude.dim() != query.dim() or exclude.shape[:-1] != query.shape[:-1]:
                    raise UsageError(
                        f"exclude has shape {tuple(exclude.shape)}; expected one row of ids for "
                        f"each query of {tuple(query.shape)}. Pad rows with -1."
                    )
                exclude = exclude.reshape(len(flat), exclude.shape[-1])
            score, ids = self.table.top(flat, k, exclude=exclude)
        return score.view(*query.shape[:-1], k), ids.view(*query.shape[:-1], k)

    @in_float32
    @torch.no_grad()
    def log_prob(self, query: Tensor, ids: Tensor) -> Tensor:
        """Exact log-probability of `ids` (..., L) given `query` (..., D), over all classes."""
        with self.table.together():
            flat = check_query(query, self.table.dim)
            if ids.dim() != query.dim() or ids.shape[:-1] != query.shape[:-1]:
                raise UsageError(
                    f"ids has shape {tuple(ids.shape)}; expected one row of ids for each query of "
                    f"{tuple(query.shape)}."
                )
            wanted = check_ids("ids", ids, self.num_classes).flatten(0, -2)
            weight, bias = self.table.rows(wanted.reshape(-1))
        weight = weight.view(*wanted.shape, self.table.dim)
        logit = torch.einsum("bld,bd->bl", weight, flat)
        logit += bias.view_as(wanted)
        return (logit - self.table.log_partition(flat)[:, None]).view(ids.shape)

    @in_float32
    @torch.no_grad()
    def full_loss(self, query: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """The exact softmax loss over all classes; what `forward` estimates."""
        with self.table.together():
            batch = self._prepare(query, target, weight)
            mean_size = self.table.mean_size(len(batch.query))
        check_somebody(mean_size)
        log_prob = self.log_prob(batch.query, batch.target.clamp(min=0))
        loss = -log_prob if batch.weight is None else -log_prob * batch.weight
        return batch.reduce(loss.sum(dim=1), self.config.reduction, mean_size)

    @in_float32
    def diagnose(
        self, query: Tensor, target: Tensor, *, context: Tensor | None = None
    ) -> Diagnosis:
        """How good the two passes are for this batch, against the exact softmax."""
        batch, meeting = self._meet(query, target, None, context)
        pool, kept = self._two_passes(meeting)
        return diagnose(self.table, batch, pool, kept, self.temperature)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """False freezes the rows; without it they move in `backward`, in `eval()`, too."""
        self.table.requires_grad_(requires_grad)
        return super().requires_grad_(requires_grad)

    def get_extra_state(self) -> dict[str, int]:
        return {"step": self.step, "seed": self.config.seed}

    def set_extra_state(self, state: dict[str, int]) -> None:
        if state["seed"] != self.config.seed:
            raise UsageError(
                f"this state was drawn with seed {state['seed']}, the head has seed "
                f"{self.config.seed}. Build the head with seed={state['seed']} to resume."
            )
        self.step = state["step"]

    def extra_repr(self) -> str:
        return f"{self.config}, proposal={self.proposal!r}"
