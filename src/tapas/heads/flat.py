"""Heads with one row for each class: what they have in common, and two ways to a loss.

SharedSample   a softmax over targets and a sample of classes that the batch shares
OwnRows        anything else: a loss of the rows that it asks for
"""

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Self

import torch
from torch import Tensor

from tapas.candidates import Candidates
from tapas.compiling import outside_graphs
from tapas.errors import UsageError
from tapas.heads.base import Head
from tapas.heads.batch import Batch, check_somebody
from tapas.losses import sampled_softmax_loss, target_costs
from tapas.precision import in_float32
from tapas.proposals import Proposal
from tapas.rng import stream
from tapas.shapes import check_ids, check_query
from tapas.tables import ClassTable
from tapas.tables.meeting import Meeting


class FlatHead(Head):
    """A head over the rows of `table`, wherever they live; a class's score is its logit."""

    def __init__(
        self, table: ClassTable, *, reduction: str = "mean", ignore_index: int = -100, seed: int = 0
    ):
        if not isinstance(table, ClassTable):
            raise UsageError(
                f"table must be a ClassTable such as tapas.LocalTable(...), got {table!r}."
            )
        super().__init__(
            table.num_classes,
            table.dim,
            reduction=reduction,
            ignore_index=ignore_index,
            seed=seed,
        )
        self.table = table

    @in_float32
    def top(self, query: Tensor, k: int, *, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        with self.table.together():
            flat = check_query(query, self.dim)
            banned = None if exclude is None else self._flat("exclude", exclude, query)
            score, ids = self.table.top(flat, k, exclude=banned)
        return score.view(*query.shape[:-1], k), ids.view(*query.shape[:-1], k)

    @in_float32
    @torch.no_grad()
    def log_prob(self, query: Tensor, ids: Tensor) -> Tensor:
        with self.table.together():
            flat = check_query(query, self.dim)
            wanted = check_ids("ids", self._flat("ids", ids, query), self.num_classes)
            weight, bias = self.table.rows(wanted.reshape(-1))
        weight = weight.view(*wanted.shape, self.table.dim)
        logit = torch.einsum("bld,bd->bl", weight, flat)
        logit += bias.view_as(wanted)
        return (logit - self.table.log_partition(flat)[:, None]).view(ids.shape)

    def accumulate(self) -> AbstractContextManager[None]:
        return self.table.accumulate()

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """False freezes the rows; without it they move in `backward`, in `eval()`, too."""
        self.table.requires_grad_(requires_grad)
        return super().requires_grad_(requires_grad)

    @property
    def wants_context(self) -> bool:
        proposal = getattr(self, "proposal", None)  # of heads that draw from one
        return isinstance(proposal, Proposal) and proposal.wants_context

    @property
    def _may_be_empty(self) -> bool:
        return self.table.num_ranks > 1

    def _together(self) -> AbstractContextManager[None]:
        return self.table.together()

    def mean_size(self, size: int) -> float:
        return self.table.mean_size(size)

    def _draws(self, *names: str) -> torch.Generator:
        """Where this step draws from."""
        return stream(self.seed, "draws", *names, self.step)


class SharedSample(FlatHead):
    """Softmax cross-entropy on targets and `candidates`, which the examples of a batch share."""

    @abstractmethod
    def candidates(self, meeting: Meeting) -> Candidates:
        """The classes to put beside the targets of this step, and how often each is expected.

        Anywhere; the same on every rank. May look at `meeting.query.detach()`.
        """

    def _losses(self, batch: Batch, context: Tensor | None) -> tuple[Tensor, float]:
        meeting = self._meet(batch, context)
        loss = sampled_softmax_loss(*self._logits(meeting), batch.weight, batch.counted)
        return loss, meeting.mean_size

    @outside_graphs
    @in_float32
    def sampled_log_prob(self, query: Tensor, target: Tensor) -> Tensor:
        """Log-probability of each target as `forward` estimates it, its shape; 0 for padding."""
        with self.table.together():
            batch = self._prepare(query, target, None)
        cost = target_costs(*self._logits(self._meet(batch, None)), batch.counted)
        self._count_step()
        real = (target != self.ignore_index).to(cost.device)
        return -cost.new_zeros(target.shape).masked_scatter(real, cost[batch.target >= 0])

    def _meet(self, batch: Batch, context: Tensor | None) -> Meeting:
        """All examples that are looked at together, those of this process among them."""
        with self.table.together():
            meeting = self.table.meet(batch.query, batch.target, context, step=self.step)
        check_somebody(len(meeting.query))
        return meeting

    def _logits(self, meeting: Meeting) -> tuple[Tensor, Tensor]:
        """Own logits and the log of the kept sum."""
        with torch.no_grad():
            kept = self.candidates(meeting).to(self.table.device)
        return self.table.logits_of(meeting, kept)


class OwnRows(FlatHead):
    """A loss of each example's own, from rows that the head asks its table for."""

    @abstractmethod
    def losses(self, batch: Batch, context: Tensor | None) -> Tensor:
        """(B,) the loss of each example, of rows that `table.live_rows` gave, in one call.

        `batch` may be empty on one rank of many, which asks for rows all the same.
        """

    def _losses(self, batch: Batch, context: Tensor | None) -> tuple[Tensor, float]:
        with self.table.together():
            mean_size = self.mean_size(len(batch.query))
        check_somebody(mean_size)
        return self.losses(batch, context), mean_size
