"""Heads with one row for each class: what they have in common, and two ways to a loss.

SharedSample   a softmax over targets and a sample of classes that the batch shares
LookupHead     anything else: a loss of the rows that it looks up
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.heads.base import Head, LossOptions, loss_options
from tapas.heads.batch import Batch, check_any_example
from tapas.heads.facts import BuildContext
from tapas.losses import sampled_softmax_loss, target_costs
from tapas.optim.row_updates import RowUpdate
from tapas.proposals import Proposal, Uniform
from tapas.rng import stream
from tapas.shapes import check_ids, check_query
from tapas.tables import ClassTable, LocalTable
from tapas.tables.ranks import GlobalBatch, Ranks
from tapas.torch_modes import in_float32, outside_graphs


class FlatOptions(LossOptions, total=False):
    """What a head with one row for each class can be told, beside its method's own options."""

    table: ClassTable | None
    row_optimizer: RowUpdate | None
    bias: bool | Tensor
    dtype: torch.dtype
    num_shards: int
    device: torch.device | str | None


class FlatHead(Head):
    """A head with one row for each class, wherever it lives; a class's score is its logit.

    Args:
        num_classes, dim: size of a `LocalTable` of its own; or leave both out and pass `table`.
        table: the rows, such as tapas.ShardedTable(num_classes, dim).
        row_optimizer: left out, an optimizer of `tapas.optim` moves the rows in its `step`. A
            fused one, tapas.optim.RowwiseAdagrad.fused(lr=0.1), moves them inside `backward`.
        bias, dtype, num_shards, device: of its own table; see `LocalTable`.
        reduction: "mean", "sum" or "none", as in torch.
        ignore_index: target that is padding.
        seed: of all draws, and of where rows of its own table start.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        **options: Unpack[FlatOptions],
    ):
        loss = loss_options(self, options, FlatOptions)
        table = _table_of(num_classes, dim, dict(options))
        super().__init__(table.num_classes, table.dim, **loss)
        self.table = table

    @classmethod
    def arguments(cls, options: Mapping[str, Any], context: BuildContext) -> dict[str, Any]:
        given = super().arguments(options, context) | {"table": context.read("table")}
        if "num_samples" in given:
            given["num_samples"] = min(given["num_samples"], context.num_classes)
        if "proposal" in cls.options:
            given["proposal"] = context.proposal(options)
        return given

    def tables(self) -> list[ClassTable]:
        return [self.table]

    @in_float32
    def topk(
        self, query: Tensor, k: int, *, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        with self.ranks.share_errors():
            flat = check_query(query, self.dim)
            banned = None if exclude is None else self._flat("exclude", exclude, query)
            score, ids = self.table.topk(flat, k, exclude=banned)
        return score.view(*query.shape[:-1], k), ids.view(*query.shape[:-1], k)

    @in_float32
    @torch.no_grad()
    def log_prob(self, query: Tensor, ids: Tensor) -> Tensor:
        with self.ranks.share_errors():
            flat = check_query(query, self.dim)
            wanted = check_ids("ids", self._flat("ids", ids, query), self.num_classes)
            weight, bias = self.table.rows(wanted.reshape(-1))
        weight = weight.view(*wanted.shape, self.table.dim)
        logit = torch.einsum("bld,bd->bl", weight, flat)
        logit += bias.view_as(wanted)
        return (logit - self.table.log_partition(flat)[:, None]).view(ids.shape)

    @property
    def wants_context(self) -> bool:
        proposal = getattr(self, "proposal", None)  # of heads that draw from one
        return isinstance(proposal, Proposal) and proposal.wants_context

    @property
    def ranks(self) -> Ranks:
        return self.table.ranks

    def _draws(self, *names: str) -> torch.Generator:
        """Where this step draws from."""
        return stream(self.seed, "draws", *names, self.step)


class SharedSample(FlatHead):
    """Softmax cross-entropy on targets and `candidates`, which the examples of a batch share."""

    @abstractmethod
    def candidates(self, batch: GlobalBatch) -> Candidates:
        """The classes to put beside the targets of this step, and how often each is expected.

        Must give the same answer on every rank, on whichever device. `batch` holds the examples
        of all ranks; queries are looked at with `batch.query.detach()`.
        """

    def _losses(self, batch: Batch, context: Tensor | None) -> tuple[Tensor, float]:
        everyone = self._gather(batch, context)
        loss = sampled_softmax_loss(*self._logits(everyone), batch.weight, batch.counted)
        return loss, everyone.mean_size

    @outside_graphs
    @in_float32
    def sampled_log_prob(
        self, query: Tensor, target: Tensor, *, context: Tensor | None = None
    ) -> Tensor:
        """Log-probability of each target as `forward` estimates it, its shape; 0 for padding."""
        with self.ranks.share_errors():
            self._refuse_backward()
            batch = self._prepare(query, target, None)
            context = batch.context_of(context)
        cost = target_costs(*self._logits(self._gather(batch, context)), batch.counted)
        self._count_step()
        real = (target != self.ignore_index).to(cost.device)
        found = -cost.new_zeros(target.shape).masked_scatter(real, cost[batch.target >= 0])
        return self._guarded(found)

    def _gather(self, batch: Batch, context: Tensor | None) -> GlobalBatch:
        """The examples of all ranks, those of this process among them."""
        with self.ranks.share_errors():
            everyone = self.ranks.batch(
                batch.query,
                batch.target,
                context,
                step=self.step,
                gradients=self.table.gradients,
            )
        check_any_example(len(everyone.query))
        return everyone

    def _logits(self, batch: GlobalBatch) -> tuple[Tensor, Tensor]:
        """Logits of targets and the log of the kept sum, for the examples of this process."""
        with torch.no_grad():
            kept = self.candidates(batch)
        return self.table.sampled_logits(batch, kept)


class LookupHead(FlatHead):
    """A loss of each example by itself, from rows that the head looks up in its table."""

    @abstractmethod
    def losses(self, batch: Batch, context: Tensor | None) -> Tensor:
        """(B,) the loss of each example, from rows of one call of `table.lookup`.

        `batch` may be empty on one rank of many, which looks rows up all the same.
        """

    def _losses(self, batch: Batch, context: Tensor | None) -> tuple[Tensor, float]:
        with self.ranks.share_errors():
            mean_size = self.ranks.mean(len(batch.query))
        check_any_example(mean_size)
        with self.ranks.share_errors():
            return self.losses(batch, context), mean_size


_OF_TABLE = ("row_optimizer", "bias", "dtype", "num_shards", "device")


def _table_of(num_classes: int | None, dim: int | None, options: dict[str, Any]) -> ClassTable:
    """The table passed, or a `LocalTable` by `options`."""
    table = options.get("table")
    own = {name: options[name] for name in _OF_TABLE if name in options}
    if isinstance(num_classes, ClassTable):
        raise UsageError("pass a table by its name: table=...")
    if table is None:
        if num_classes is None or dim is None:
            raise UsageError("pass num_classes and dim, or a table.")
        return LocalTable(num_classes, dim, seed=options.get("seed", 0), **own)
    if not isinstance(table, ClassTable):
        raise UsageError(
            f"table must be a ClassTable such as tapas.LocalTable(...), got {table!r}."
        )
    if own:
        raise UsageError(
            f"{', '.join(own)} cannot be passed beside a table, which has its own. "
            "Pass them to the table."
        )
    for name, given in (("num_classes", num_classes), ("dim", dim)):
        if given not in (None, getattr(table, name)):
            raise UsageError(
                f"{name} is {given}, but the table has {getattr(table, name)}. Leave it out."
            )
    return table


def build_proposal(proposal: Proposal | None, num_classes: int) -> Proposal:
    """The proposal passed, or the uniform one, over just the classes of the table."""
    if proposal is None:
        return Uniform(num_classes)
    if not isinstance(proposal, Proposal):
        raise UsageError(
            f"proposal must be one such as tapas.Squashed(counts), got {type(proposal).__name__}."
        )
    if proposal.num_classes != num_classes:
        raise UsageError(
            f"the proposal is over {proposal.num_classes} classes, the table has {num_classes}. "
            "Build both from one number."
        )
    return proposal
